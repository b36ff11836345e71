//! The arguments of `record` for HTTP.

use std::path::PathBuf;

use retroscope_api::{Address, Config, Owner, TlsFiles};

/// Where and how HTTP is served.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(group = clap::ArgGroup::new("served").multiple(true))]
pub(crate) struct ApiArgs {
    /// Serve HTTP here: an address with a port, as 127.0.0.1:8080, for who has a token (--tokens); or unix:PATH, a socket for this user, root and its
    /// group; repeat for several. docs/api.md tells what can be asked for
    #[arg(long = "api", value_name = "ADDR|unix:PATH", group = "served")]
    pub(crate) addresses: Vec<Address>,

    /// Serve metrics alone here, for Prometheus: an address with a port, for who has a token of the role metrics or more (--tokens), or unix:PATH; repeat for several.
    /// docs/metrics.md lists them
    #[arg(long, value_name = "ADDR|unix:PATH", group = "served")]
    metrics: Vec<Address>,

    /// A name by which clients ask for the API, beside its addresses and localhost; repeat for several
    #[arg(long = "api-host", value_name = "NAME", requires = "served")]
    hosts: Vec<String>,

    /// The file of tokens, which `retroscope token` writes. It is read again when it changes
    #[arg(long, value_name = "FILE", requires = "served")]
    tokens: Option<PathBuf>,

    /// Serve addresses by TLS, with this certificate (PEM, then those up to its authority); asked for beyond this machine. Certificate, key and
    /// authorities of clients are read again when they change
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The key of --tls-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Let in only clients with a certificate of these authorities (PEM), beside their tokens
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
}

impl ApiArgs {
    /// What is to be served, if anything.
    pub(crate) fn config(&self, owner: Owner) -> Option<Config> {
        let tls = self.tls_cert.clone().zip(self.tls_key.clone());
        let tls = tls.map(|(certificate, key)| TlsFiles {
            certificate,
            key,
            client_authority: self.tls_client_ca.clone(),
        });
        let is_any = !self.addresses.is_empty() || !self.metrics.is_empty();
        is_any.then(|| Config {
            addresses: self.addresses.clone(),
            metrics: self.metrics.clone(),
            hosts: self.hosts.clone(),
            tokens: self.tokens.clone(),
            tls,
            owner,
        })
    }
}
