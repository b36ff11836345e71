//! Options that select a recorder and authenticate to its HTTP API.

use std::{env, fs, path::PathBuf};

use retroscope_api::client::{
    ApiAnswer, ApiRequest, Client, ClientConfig, ClientError, Endpoint, SOCKET, Url, default_socket,
};
use serde_json::Value;

use crate::failure::Failure;

/// Environment variable with the path of a token file.
const TOKEN_FILE: &str = "RETROSCOPE_TOKEN_FILE";
/// Maximum size of a regular token file in bytes.
const TOKEN_BYTES_MAX: u64 = 4096;

/// The recorder to contact, and the credentials.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Recorder")]
pub(crate) struct RemoteArgs {
    #[arg(long, global = true, value_name = "PATH", conflicts_with = "url", help = socket_help())]
    socket: Option<PathBuf>,

    /// Connect to the address of `record --api ADDR`: https://HOST:PORT[/PREFIX], or
    /// http://127.0.0.1:PORT on this machine
    #[arg(long, global = true, value_name = "URL")]
    url: Option<Url>,

    /// Read the token for --url from FILE, as printed by `retroscope token` [default:
    /// $RETROSCOPE_TOKEN_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Trust these certificate authorities for --url (PEM) instead of the system's
    #[arg(long, global = true, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Present this client certificate to --url (PEM), if the recorder demands one
    /// (api.tls-client-ca)
    #[arg(long, global = true, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,

    /// Use this private key of --client-cert (PEM)
    #[arg(long, global = true, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

fn socket_help() -> String {
    format!(
        "Connect to the socket of `record --api unix:PATH` [default: {SOCKET}, or $XDG_RUNTIME_DIR/retroscope.sock if that is missing]"
    )
}

impl RemoteArgs {
    fn endpoint(&self) -> Endpoint {
        match (&self.url, &self.socket) {
            (Some(url), _) => Endpoint::Url(url.clone()),
            (None, Some(path)) => Endpoint::Socket(path.clone()),
            (None, None) => Endpoint::Socket(default_socket()),
        }
    }

    pub(crate) fn shown(&self) -> String {
        self.endpoint().to_string()
    }

    /// The URL of the web page, if `--url` is given.
    pub(crate) fn page(&self) -> Option<String> {
        self.url.as_ref().map(|_| format!("{}/", self.endpoint()))
    }

    pub(crate) fn client(&self) -> Result<Client, Failure> {
        // Clap cannot check that these options come with --url: one may precede a subcommand, and
        // --url may follow the subcommand.
        let of_url = [&self.token_file, &self.ca, &self.client_cert];
        let token = match self.url {
            Some(_) => self.token()?,
            None if of_url.iter().all(|given| given.is_none()) => None,
            None => {
                return Err(Failure::usage(
                    "--token-file, --ca and --client-cert are for --url: a unix socket needs none",
                ));
            }
        };
        let config = ClientConfig {
            endpoint: self.endpoint(),
            token,
            authorities: self.ca.clone(),
            certificate: self.client_cert.clone().zip(self.client_key.clone()),
        };
        Client::new(config).map_err(failure)
    }

    fn token(&self) -> Result<Option<String>, Failure> {
        let named = env::var_os(TOKEN_FILE).filter(|path| !path.is_empty());
        let Some(path) = self.token_file.clone().or(named.map(PathBuf::from)) else {
            return Ok(None);
        };
        let failed = |why: String| Failure::failed(format_args!("{}: {why}", path.display()));
        let metadata = fs::metadata(&path).map_err(|error| failed(error.to_string()))?;
        if metadata.is_file() && metadata.len() > TOKEN_BYTES_MAX {
            return Err(failed("it is too large for the file of a token".to_owned()));
        }
        let text = fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?;
        let token = text.trim();
        if token.is_empty() || token.contains(char::is_whitespace) {
            let why = "a file with a token has one line, as `retroscope token` prints it";
            return Err(failed(why.to_owned()));
        }
        Ok(Some(token.to_owned()))
    }
}

/// If the recorder refuses an argument as wrong (400, 422), that is a usage error.
pub(crate) fn failure(error: ClientError) -> Failure {
    match error {
        ClientError::Refused {
            status: 400 | 422, ..
        } => Failure::usage(error),
        error => Failure::failed(error),
    }
}

pub(crate) fn ask(client: &Client, ask: ApiRequest) -> Result<Value, Failure> {
    client.send(ask).and_then(ApiAnswer::json).map_err(failure)
}

/// Replaces control characters, for text from the network.
pub(crate) fn printable(text: &str) -> String {
    text.replace(char::is_control, "?")
}
