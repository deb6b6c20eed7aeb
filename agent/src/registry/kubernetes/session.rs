//! The credentials, and the connection to the API server that they make.
//!
//! Theory of operation. Credentials are read when a session begins, and a session that fails is replaced by a new one, so
//! files that are renewed (a kubeconfig, client certificates) are in force after the first failure at the latest. The
//! token of a pod's service account is read again every minute within a session. Nothing is executed: a kubeconfig that
//! names a program for its credentials is refused.
//!
//! Connections are HTTP/1.1: a watch has one of its own. The kernel probes each, and one that was idle for long is not
//! used again.

use std::path::PathBuf;
use std::time::Duration;

use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::BoxError;
use tower::util::MapErrLayer;

use crate::config::node::registry::KubernetesConfig;

/// Why no session can begin.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    /// The kubeconfig that the configuration names.
    #[error("cannot use the kubeconfig {path}: correct it, or name another with kubeconfig", path = .path.display())]
    Kubeconfig {
        path: PathBuf,
        #[source]
        source: KubeconfigError,
    },
    /// The kubeconfig that the environment names.
    #[error(
        "cannot use the kubeconfig that the variable KUBECONFIG names: correct it, or set kubeconfig"
    )]
    Environment(#[source] KubeconfigError),
    /// Neither a kubeconfig nor a pod's service account.
    #[error(
        "no credentials for the Kubernetes API: set kubeconfig to a file made by deploy/kubernetes/make-kubeconfig"
    )]
    NoCredentials(#[source] InClusterError),
    /// A server that is no URL.
    #[error("kube-api-url {0:?} is not a URL as in https://192.0.2.1:6443: correct it")]
    Url(String),
    /// Credentials that a program gives.
    #[error(
        "the kubeconfig gets its credentials from a program, and Tartan executes none: make one with a token by deploy/kubernetes/make-kubeconfig"
    )]
    Program,
    /// A proxy.
    #[error(
        "the kubeconfig or the environment names a proxy, which is not supported: remove proxy-url and HTTPS_PROXY, and set kube-api-url to a server that this node reaches"
    )]
    Proxy,
    /// Credentials that cannot be used.
    #[error("cannot use the credentials for the Kubernetes API: correct them in the kubeconfig")]
    Client(#[source] kube::Error),
}

/// A client with the credentials that `config` names, read anew, and the server's address. Must be called within a tokio
/// runtime.
///
/// # Errors
/// [`SessionError`]. A server that does not answer is not an error here.
pub(super) async fn begin(config: &KubernetesConfig) -> Result<(Client, String), SessionError> {
    let mut found = credentials(config).await?;
    if let Some(url) = &config.api_url {
        found.cluster_url = url
            .parse()
            .ok()
            .filter(|_| url.starts_with("http://") || url.starts_with("https://"))
            .ok_or_else(|| SessionError::Url(url.clone()))?;
    }
    if found.auth_info.exec.is_some() || found.auth_info.auth_provider.is_some() {
        return Err(SessionError::Program);
    }
    if found.proxy_url.is_some() {
        return Err(SessionError::Proxy);
    }
    if let (Ok(name), Ok(value)) = ("user-agent".parse(), AGENT.parse()) {
        found.headers.push((name, value));
    }
    let client = client(&found).map_err(SessionError::Client)?;
    Ok((client, found.cluster_url.to_string()))
}

/// As flannel: the file of the configuration, else those of `KUBECONFIG`, else a pod's own; a server that is named alone
/// is asked without credentials.
async fn credentials(config: &KubernetesConfig) -> Result<Config, SessionError> {
    let options = KubeConfigOptions::default();
    if let Some(path) = &config.kubeconfig {
        let fault = |source| SessionError::Kubeconfig {
            path: path.clone(),
            source,
        };
        let read = Kubeconfig::read_from(path).map_err(fault)?;
        let found = Config::from_custom_kubeconfig(read, &options).await;
        return found.map_err(fault);
    }
    if let Some(read) = Kubeconfig::from_env().map_err(SessionError::Environment)? {
        let found = Config::from_custom_kubeconfig(read, &options).await;
        return found.map_err(SessionError::Environment);
    }
    match (Config::incluster(), &config.api_url) {
        (Ok(found), _) => Ok(found),
        (Err(_), Some(url)) => match url.parse() {
            Ok(server) => Ok(Config::new(server)),
            Err(_) => Err(SessionError::Url(url.clone())),
        },
        (Err(error), None) => Err(SessionError::NoCredentials(error)),
    }
}

/// kube's own stack has no keep-alive and logs every failed request as an error.
fn client(config: &Config) -> Result<Client, kube::Error> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_keepalive(Some(KEEP_ALIVE));
    connector.set_keepalive_interval(Some(PROBE));
    connector.set_keepalive_retries(Some(PROBES));
    connector.set_tcp_user_timeout(Some(KEEP_ALIVE));
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let http: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .build(connector);
    let builder = ClientBuilder::new(http, config.default_namespace.clone())
        .with_layer(&MapErrLayer::new(BoxError::from))
        .with_layer(&config.extra_headers_layer()?);
    let base = config.base_uri_layer();
    Ok(match config.auth_layer()? {
        Some(auth) => builder.with_layer(&auth).with_layer(&base).build(),
        None => builder.with_layer(&base).build(),
    })
}

/// `User-Agent` of every request: the API server's audit log shows it.
const AGENT: &str = concat!("tartan/", env!("CARGO_PKG_VERSION"));
/// Of a handshake on the underlay; a server that is slower than that is not in touch.
pub(super) const CONNECT: Duration = Duration::from_secs(4);
/// After this time without traffic the kernel probes a connection; it ends after as long without an answer.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const PROBE: Duration = Duration::from_secs(4);
const PROBES: u32 = 3;
/// Connections idle for longer are closed: a firewall between may have forgotten them.
const IDLE: Duration = Duration::from_secs(10);
