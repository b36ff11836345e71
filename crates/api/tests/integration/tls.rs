//! TLS, and certificates of clients.

use std::{
    fs,
    io::{Read, Write},
    path::PathBuf,
    sync::Arc,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use retroscope_api::{Address, BoundApi, Config, Notifier, Page, TlsFiles};
use retroscope_recorder::{RecorderEvent, Subscription};
use tempfile::TempDir;
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::audit::next;
use crate::support::{Answer, DEADLINE, Request, Served, get, request};

struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { issuer }
    }

    /// A certificate for a name, and its key, as PEM.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

fn write(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    path
}

fn files(folder: &TempDir, authority: &Authority, of_clients: Option<&Authority>) -> TlsFiles {
    let (certificate, key) = authority.sign("127.0.0.1");
    TlsFiles {
        certificate: write(folder, "certificate", &certificate),
        key: write(folder, "key", &key),
        client_authority: of_clients.map(|it| write(folder, "clients", &it.issuer.pem())),
    }
}

/// Sends a request over TLS. The client trusts one authority.
fn ask(
    served: &Served,
    authority: &Authority,
    own: Option<(String, String)>,
    request: &Request,
) -> Result<Answer, String> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(authority.issuer.pem().as_bytes()).unwrap())
        .unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder
                .with_client_auth_cert(vec![certificate], key)
                .unwrap()
        }
    };
    let connection =
        ClientConnection::new(Arc::new(config), "127.0.0.1".try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(connection, served.connect());
    let said = |error: std::io::Error| error.to_string();
    stream
        .write_all(&request.bytes(&served.address.to_string()))
        .map_err(said)?;
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if bytes.is_empty() => Err(said(error)),
        _ => Ok(Answer::parse(&bytes)),
    }
}

#[test]
fn tls_is_spoken_and_tokens_are_asked_for() {
    let authority = Authority::new();
    let served = Served::with_tls(|folder| Some(files(folder, &authority, None)));
    let token = served.token("view");
    let status = ask(&served, &authority, None, &get("/v1/status").token(token)).unwrap();
    assert_eq!(status.status, 200);
    ask(&served, &authority, None, &get("/v1/status"))
        .unwrap()
        .refused(401);
    let login = request("POST", "/v1/session").token(token);
    let session = ask(&served, &authority, None, &login).unwrap();
    assert!(session.headers["set-cookie"].ends_with("; Secure"));
    let own = format!("https://{}", served.address);
    let page = get("/v1/status").token(token).header("Origin", &own);
    assert_eq!(ask(&served, &authority, None, &page).unwrap().status, 200);
    assert!(ask(&served, &Authority::new(), None, &get("/healthz")).is_err());
    // A client without TLS gets no HTTP answer.
    let mut plain = served.connect();
    plain
        .write_all(&get("/healthz").bytes("127.0.0.1"))
        .unwrap();
    let mut heard = Vec::new();
    let _ = plain.read_to_end(&mut heard);
    assert!(!heard.starts_with(b"HTTP"), "{heard:?}");
}

#[test]
fn a_client_needs_a_certificate_of_the_authority_where_there_is_one() {
    let (authority, of_clients) = (Authority::new(), Authority::new());
    let served = Served::with_tls(|folder| Some(files(folder, &authority, Some(&of_clients))));
    let request = get("/v1/status").token(served.token("view"));
    let with = |own| ask(&served, &authority, own, &request);
    assert_eq!(with(Some(of_clients.sign("client"))).unwrap().status, 200);
    let mut listener = served.handle.subscribe(None);
    assert!(with(None).is_err());
    let refused = next(&mut listener, "refused");
    let reason = refused["reason"].as_str().unwrap();
    assert!(reason.starts_with("TLS: "), "{refused}");
    assert_eq!(refused["address"], "127.0.0.1");
    let ours = ask(
        &served,
        &authority,
        Some(of_clients.sign("client")),
        &get("/v1/status"),
    );
    ours.unwrap().refused(401);
    assert!(with(Some(authority.sign("client"))).is_err());
}

/// An open TLS connection of a client that trusts one authority. `Err`: the client rejects the
/// server's certificate.
fn connect(
    served: &Served,
    authority: &Authority,
) -> Result<StreamOwned<ClientConnection, std::net::TcpStream>, String> {
    let mut roots = RootCertStore::empty();
    let pem = authority.issuer.pem();
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    roots.add(certificate).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let config = builder.with_root_certificates(roots).with_no_client_auth();
    let connection =
        ClientConnection::new(Arc::new(config), "127.0.0.1".try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(connection, served.connect());
    let mut request = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".as_slice();
    let written = std::io::copy(&mut request, &mut stream);
    written.map_err(|error| error.to_string())?;
    is_answered(&mut stream).map(|()| stream)
}

/// Reads an answer of `/healthz` and leaves the connection open.
fn is_answered(stream: &mut impl Read) -> Result<(), String> {
    let mut heard = Vec::new();
    while !heard.ends_with(b"\r\n\r\nok\n") {
        let mut byte = [0];
        let read = stream.read_exact(&mut byte);
        read.map_err(|error| error.to_string())?;
        heard.push(byte[0]);
    }
    Ok(())
}

fn notice(listener: &mut Subscription, text: &str) -> String {
    loop {
        match listener.take(DEADLINE) {
            Ok(RecorderEvent::Notice(said)) if said.contains(text) => return said,
            Ok(_) => {}
            Err(error) => panic!("no notice {text:?}: {error}"),
        }
    }
}

/// After a renewal, open connections continue. A broken renewal is reported.
#[test]
fn a_renewed_certificate_is_taken_up_and_a_broken_one_is_not() {
    let (old, new) = (Authority::new(), Authority::new());
    let mut paths = None;
    let served = Served::with_tls(|folder| {
        let all = files(folder, &old, None);
        paths = Some(all.clone());
        Some(all)
    });
    let TlsFiles {
        certificate, key, ..
    } = paths.unwrap();
    let mut listener = served.handle.subscribe(None);
    let mut first = connect(&served, &old).unwrap();
    assert!(connect(&served, &new).is_err());
    // The first half of a renewal: a new certificate with the old key.
    let (renewed, renewed_key) = new.sign("127.0.0.1");
    fs::write(&certificate, &renewed).unwrap();
    let said = notice(&mut listener, "stays");
    assert!(said.contains("api.tls-key"), "{said}");
    connect(&served, &old).unwrap();
    // The second half: the new key.
    fs::write(&key, &renewed_key).unwrap();
    notice(&mut listener, "new connections get");
    let mut second = connect(&served, &new).unwrap();
    assert!(connect(&served, &old).is_err());
    for stream in [&mut first, &mut second] {
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            .unwrap();
        is_answered(stream).unwrap();
    }
    for broken in ["", &renewed[..renewed.len() / 2], "no certificate"] {
        fs::write(&certificate, broken).unwrap();
        let said = notice(&mut listener, "stays");
        assert!(said.contains("api.tls-cert"), "{said}");
        connect(&served, &new).unwrap();
    }
    // The path becomes a symbolic link to another file, as certbot makes it.
    fs::remove_file(&certificate).unwrap();
    notice(&mut listener, "stays");
    let other = certificate.with_extension("other");
    fs::write(&other, &renewed).unwrap();
    std::os::unix::fs::symlink(&other, &certificate).unwrap();
    notice(&mut listener, "new connections get");
    connect(&served, &new).unwrap();
}

#[test]
fn files_are_read_again_when_asked() {
    let authority = Authority::new();
    let served = Served::with_tls(|folder| Some(files(folder, &authority, None)));
    let mut listener = served.handle.subscribe(None);
    assert!(served.refresh());
    notice(&mut listener, "new connections get");
    connect(&served, &authority).unwrap();
    let mut listener = served.handle.subscribe(None);
    assert!(served.refresh());
    notice(&mut listener, "read 5 tokens");
}

/// The API does not start on an address without the required TLS or tokens.
#[test]
fn addresses_beyond_this_machine_need_tls_and_all_need_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let say = Notifier(Arc::new(|_: &str| {}));
    let refused = |config: Config| BoundApi::new(&config, &say).unwrap_err();
    let at = |text: &str| vec![text.parse::<Address>().unwrap()];
    let tokens = Some(write(&folder, "tokens", ""));
    let config = Config {
        addresses: at("0.0.0.0:0"),
        tokens: tokens.clone(),
        ..Config::default()
    };
    assert!(refused(config).contains("api.tls-cert"));
    let config = Config {
        addresses: at("127.0.0.1:0"),
        ..Config::default()
    };
    assert!(refused(config).contains("--tokens"));
    // With a page and a unix socket, loopback addresses need no tokens, because links can log in.
    // Addresses for metrics still need tokens.
    let linked = Config {
        addresses: [
            at("127.0.0.1:0"),
            vec![Address::Unix(folder.path().join("socket"))],
        ]
        .concat(),
        page: Some(Page {
            idle: DEADLINE,
            lifetime: DEADLINE,
        }),
        ..Config::default()
    };
    assert!(BoundApi::new(&linked, &say).is_ok());
    for config in [
        Config {
            page: None,
            ..linked.clone()
        },
        Config {
            addresses: at("127.0.0.1:0"),
            ..linked.clone()
        },
        Config {
            metrics: at("127.0.0.1:0"),
            ..linked.clone()
        },
        Config {
            addresses: [linked.addresses.clone(), at("0.0.0.0:0")].concat(),
            ..linked.clone()
        },
    ] {
        assert!(refused(config).contains("--tokens"));
    }
    let missing = folder.path().join("missing");
    let config = Config {
        addresses: at("127.0.0.1:0"),
        tokens: Some(missing.clone()),
        ..Config::default()
    };
    assert!(refused(config).contains("missing"));
    let authority = Authority::new();
    let good = files(&folder, &authority, None);
    let with = |tls: TlsFiles| Config {
        addresses: at("127.0.0.1:0"),
        tokens: tokens.clone(),
        tls: Some(tls),
        ..Config::default()
    };
    assert!(BoundApi::new(&with(good.clone()), &say).is_ok());
    let other = write(&folder, "other", &authority.sign("127.0.0.1").1);
    for (tls, told) in [
        (
            TlsFiles {
                key: other,
                ..good.clone()
            },
            "api.tls-key",
        ),
        (
            TlsFiles {
                key: missing.clone(),
                ..good.clone()
            },
            "api.tls-key",
        ),
        (
            TlsFiles {
                certificate: missing.clone(),
                ..good.clone()
            },
            "api.tls-cert",
        ),
        (
            TlsFiles {
                certificate: good.key.clone(),
                ..good.clone()
            },
            "api.tls-cert",
        ),
        (
            TlsFiles {
                client_authority: Some(missing),
                ..good.clone()
            },
            "api.tls-client-ca",
        ),
    ] {
        let why = refused(with(tls));
        assert!(why.contains(told), "{why}");
    }
    let taken = BoundApi::new(&with(good), &say).unwrap();
    let address = taken.tcp_addresses()[0].to_string();
    let config = Config {
        addresses: at(&address),
        tokens,
        ..Config::default()
    };
    assert!(refused(config).contains(&address));
}
