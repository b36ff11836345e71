//! Configuration of the HTTP API of `record`.

use retroscope_api::{Config, Owner, Page, TlsFiles};

use super::config::Api;
use crate::failure::Failure;

impl Api {
    /// The configuration of the HTTP server. `None`: all keys of `api` have their
    /// defaults, so nothing is served.
    ///
    /// # Errors
    /// [`Failure`], exit 2: a key requires another key.
    pub(crate) fn config(&self, owner: Owner) -> Result<Option<Config>, Failure> {
        if self.listen.is_empty() && self.metrics.is_empty() {
            return match *self == Self::default() {
                true => Ok(None),
                false => Err(Failure::usage(
                    "api: nothing is served: give --api ADDR, or the key api.metrics",
                )),
            };
        }
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some(TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                client_authority: self.tls_client_ca.clone(),
            }),
            (Some(_), None) => return Err(Failure::usage("api.tls-cert needs api.tls-key")),
            (None, Some(_)) => return Err(Failure::usage("api.tls-key needs api.tls-cert")),
            (None, None) if self.tls_client_ca.is_some() => {
                let why = "api.tls-client-ca needs api.tls-cert and api.tls-key";
                return Err(Failure::usage(why));
            }
            (None, None) => None,
        };
        Ok(Some(Config {
            addresses: self.listen.values().cloned().collect(),
            metrics: self.metrics.values().cloned().collect(),
            hosts: self.host.to_vec(),
            tokens: self.tokens.clone(),
            tls,
            page: self.page.then(|| Page {
                idle: *self.session_idle,
                lifetime: *self.session_lifetime,
            }),
            owner,
        }))
    }
}
