//! TLS by rustls with ring's cryptography.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio_rustls::rustls::{
    RootCertStore, ServerConfig,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};

/// Files of PEM blocks.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate, then those between it and the authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities: where given, a client needs a certificate of one of them, beside its token.
    pub client_authority: Option<PathBuf>,
}

/// What rustls needs of these files.
pub(crate) fn server_config(files: &TlsFiles) -> Result<Arc<ServerConfig>, String> {
    let chain = certificates(&files.certificate, "--tls-cert")?;
    let key = key(&files.key, "--tls-key")?;
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match &files.client_authority {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let shown = path.display();
            let wrong = |why: String| format!("--tls-client-ca {shown}: {why}");
            let mut roots = RootCertStore::empty();
            for authority in certificates(path, "--tls-client-ca")? {
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
        format!("--tls-cert {certificate} and --tls-key {key}: {error}")
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The private key of a file that an option names.
pub(crate) fn key(path: &Path, option: &str) -> Result<PrivateKeyDer<'static>, String> {
    let shown = path.display();
    PrivateKeyDer::from_pem_file(path).map_err(|error| format!("{option} {shown}: {error}"))
}

/// The certificates of a file that an option names, one at least.
pub(crate) fn certificates(
    path: &Path,
    option: &str,
) -> Result<Vec<CertificateDer<'static>>, String> {
    let shown = path.display();
    let wrong = |why: String| format!("{option} {shown}: {why}");
    let read = CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?;
    let certificates: Result<Vec<_>, _> = read.collect();
    let certificates = certificates.map_err(|error| wrong(error.to_string()))?;
    if certificates.is_empty() {
        return Err(wrong("there is no certificate in it".to_owned()));
    }
    Ok(certificates)
}
