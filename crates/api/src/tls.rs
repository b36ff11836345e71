//! TLS by rustls, with the cryptography of the crate `ring`.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;
use tokio_rustls::rustls::{
    RootCertStore, ServerConfig,
    crypto::ring::default_provider,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::WebPkiClientVerifier,
};

use crate::stamp::{FileStamp, stamp};

/// Files of PEM blocks.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate, followed by the intermediate certificates.
    pub certificate: PathBuf,
    /// The server's private key.
    pub key: PathBuf,
    /// Certificate authorities. If present, a client needs a certificate of one of these
    /// authorities in addition to its token.
    pub client_authority: Option<PathBuf>,
}

/// A TLS configuration that follows its files. New connections get the current configuration. A new
/// configuration has no TLS sessions, so a client cannot resume a TLS session after its authority
/// was removed.
#[derive(Debug)]
pub(crate) struct Tls {
    files: TlsFiles,
    current: ArcSwap<ServerConfig>,
    known: Mutex<KnownStamps>,
}

/// The stamps of certificate, key and authority.
type FileStamps = [FileStamp; 3];

#[derive(Debug)]
struct KnownStamps {
    /// The stamps at the last read.
    read: FileStamps,
    /// The stamps at the last inspection.
    seen: FileStamps,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// A sentence for the user: a file cannot be read or is invalid.
    pub(crate) fn read(files: &TlsFiles) -> Result<Self, String> {
        let stamps = files.stamps();
        Ok(Self {
            files: files.clone(),
            current: ArcSwap::new(server_config(files)?),
            known: Mutex::new(KnownStamps {
                read: stamps,
                seen: stamps,
            }),
        })
    }

    /// The configuration for a new connection.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }

    /// Reads the files again if `is_asked`, or if they have changed and have the same stamps in two
    /// successive calls, because a renewal writes certificate and key one after the other. Unusable
    /// files change nothing. Returns a sentence for the user; `None`: no file was read.
    pub(crate) fn refresh(&self, is_asked: bool) -> Option<String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = self.files.stamps();
        let has_settled = std::mem::replace(&mut known.seen, stamps) == stamps;
        if !is_asked && (stamps == known.read || !has_settled) {
            return None;
        }
        known.read = stamps;
        let path = self.files.certificate.display();
        Some(match server_config(&self.files) {
            Ok(config) => {
                self.current.store(config);
                format!("new connections get the certificate that is in {path} now")
            }
            Err(why) => {
                format!(
                    "the certificate in {path} is not used, and the one from before stays: {why}"
                )
            }
        })
    }
}

impl TlsFiles {
    fn stamps(&self) -> FileStamps {
        let authority = self.client_authority.as_deref();
        [
            stamp(&self.certificate),
            stamp(&self.key),
            authority.and_then(stamp),
        ]
    }
}

fn server_config(files: &TlsFiles) -> Result<Arc<ServerConfig>, String> {
    let chain = certificates(&files.certificate, "api.tls-cert")?;
    let key = key(&files.key, "api.tls-key")?;
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match &files.client_authority {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let shown = path.display();
            let wrong = |why: String| format!("api.tls-client-ca {shown}: {why}");
            let mut roots = RootCertStore::empty();
            for authority in certificates(path, "api.tls-client-ca")? {
                roots
                    .add(authority)
                    .map_err(|error| wrong(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = verifier.build().map_err(|error| wrong(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| {
        let (certificate, key) = (files.certificate.display(), files.key.display());
        format!("api.tls-cert {certificate} and api.tls-key {key}: {error}")
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Reads a private key. `option` names the file in errors.
pub(crate) fn key(path: &Path, option: &str) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| unreadable(path, option, &error))
}

/// Reads at least one certificate. `option` names the file in errors.
pub(crate) fn certificates(
    path: &Path,
    option: &str,
) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |error: pem::Error| unreadable(path, option, &error);
    let read = CertificateDer::pem_file_iter(path).map_err(wrong)?;
    let certificates: Result<Vec<_>, _> = read.collect();
    let certificates = certificates.map_err(wrong)?;
    if certificates.is_empty() {
        let path = path.display();
        return Err(format!("{option} {path}: there is no certificate in it"));
    }
    Ok(certificates)
}

/// The sentence for a file that cannot be read or parsed. A program without privileges often cannot
/// read root's files.
fn unreadable(path: &Path, option: &str, error: &pem::Error) -> String {
    let path = path.display();
    match error {
        pem::Error::Io(io) if io.kind() == ErrorKind::PermissionDenied => {
            format!(
                "{option} {path}: {io}: give the user that this program runs as read permission"
            )
        }
        error => format!("{option} {path}: {error}"),
    }
}
