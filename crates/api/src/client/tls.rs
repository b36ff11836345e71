//! TLS to a server: rustls with the cryptography of the crate `ring`.

use std::sync::Arc;

use tokio_rustls::rustls::{
    ClientConfig as RustlsConfig, RootCertStore, crypto::ring::default_provider,
};

use super::ClientConfig;
use crate::tls::{certificates, key};

/// The TLS configuration of a client: authorities to trust, and the client's own certificate.
pub(super) fn rustls_config(config: &ClientConfig) -> Result<Arc<RustlsConfig>, String> {
    let mut roots = RootCertStore::empty();
    match &config.authorities {
        Some(path) => {
            for authority in certificates(path, "--ca")? {
                let added = roots.add(authority);
                added.map_err(|error| format!("--ca {}: {error}", path.display()))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            // Ignore authorities that webpki cannot parse: a system with hundreds of authorities
            // may have some.
            let (added, _) = roots.add_parsable_certificates(found.certs);
            if added == 0 {
                let why = found.errors.first().map(|error| format!(" ({error})"));
                let why = why.unwrap_or_default();
                return Err(format!(
                    "this system has no certificates of authorities{why}: name them by --ca FILE"
                ));
            }
        }
    }
    let builder = RustlsConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let mut rustls = match &config.certificate {
        None => builder.with_no_client_auth(),
        Some((certificate, key_file)) => {
            let (chain, own_key) = (
                certificates(certificate, "--client-cert")?,
                key(key_file, "--client-key")?,
            );
            let built = builder.with_client_auth_cert(chain, own_key);
            built.map_err(|error| format!("--client-cert {}: {error}", certificate.display()))?
        }
    };
    rustls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(rustls))
}
