//! The name of the Node that a pod runs on, asked of the API, as flanneld finds its own (flannel
//! `pkg/subnet/kube/kube.go`, NewSubnetManager).

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::api::{Api, ApiError};
use super::session::{self, SessionError};
use crate::config::node::registry::KubernetesConfig;

/// Why the name is not known.
#[derive(Debug, thiserror::Error)]
pub enum PodNodeError {
    /// No name of an object of Kubernetes.
    #[error("{0:?} is no name of a pod or of its namespace: correct POD_NAME and POD_NAMESPACE")]
    Name(String),
    /// No session.
    #[error("the API cannot be asked for the node of the pod {pod}")]
    Session {
        /// The pod, `namespace/name`.
        pod: String,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No answer that can be used.
    #[error("the API does not say which node the pod {pod} runs on: {reason}")]
    Refused {
        /// The pod, `namespace/name`.
        pod: String,
        /// Why not.
        reason: String,
    },
}

/// The name of the Node that the pod `name` of `namespace` runs on. What fails is tried again for `patience`.
///
/// # Errors
/// [`PodNodeError`] with the last reason.
pub async fn node_of_pod(
    config: &KubernetesConfig,
    namespace: &str,
    name: &str,
    patience: Duration,
) -> Result<String, PodNodeError> {
    if let Some(wrong) = [namespace, name].into_iter().find(|it| !is_name(it)) {
        return Err(PodNodeError::Name(wrong.to_owned()));
    }
    let pod = format!("{namespace}/{name}");
    let give_up = Instant::now() + patience;
    loop {
        let reason = match ask(config, namespace, name).await {
            Ok(node) => return Ok(node),
            Err(Failure::Session(source)) => {
                let source = Box::new(source);
                return Err(PodNodeError::Session { pod, source });
            }
            Err(Failure::Api(error)) => error.to_string(),
            Err(Failure::Unscheduled) => "it runs on none".to_owned(),
        };
        if Instant::now() + PAUSE >= give_up {
            return Err(PodNodeError::Refused { pod, reason });
        }
        sleep(PAUSE).await;
    }
}

enum Failure {
    Session(SessionError),
    Api(ApiError),
    /// The pod's `nodeName` is not set.
    Unscheduled,
}

async fn ask(config: &KubernetesConfig, namespace: &str, name: &str) -> Result<String, Failure> {
    let (client, _) = session::begin(config).await.map_err(Failure::Session)?;
    let pod = Api::new(client).pod(namespace, name).await;
    let node = pod.map_err(Failure::Api)?.spec.node_name;
    (!node.is_empty())
        .then_some(node)
        .ok_or(Failure::Unscheduled)
}

/// A DNS subdomain (RFC 1123), as Kubernetes names pods and namespaces: nothing that means something else in a path.
fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
    let is_dots = text.bytes().all(|b| b == b'.');
    (1..=253).contains(&text.len()) && text.bytes().all(plain) && !is_dots
}

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A server that gives each answer once; its address, and what it was asked.
    fn server(answers: &'static [(u16, &str)]) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serve = move || {
            let mut asked = Vec::new();
            for (code, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    assert_eq!(stream.read(&mut byte).unwrap(), 1);
                    request.push(byte[0]);
                }
                let request = String::from_utf8(request).unwrap();
                asked.push(request.lines().next().unwrap().to_owned());
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
                     Connection: close\r\n\r\n"
                );
                stream.write_all(head.as_bytes()).unwrap();
                stream.write_all(body.as_bytes()).unwrap();
            }
            asked
        };
        (url, std::thread::spawn(serve))
    }

    fn config(url: String) -> KubernetesConfig {
        KubernetesConfig {
            kubeconfig: None,
            api_url: Some(url),
            annotation_prefix: "flannel.alpha.coreos.com".to_owned(),
            set_network_unavailable: true,
        }
    }

    const REFUSED: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
        "message":"pods \"p\" not found","reason":"NotFound","code":404}"#;
    const POD: &str = r#"{"kind":"Pod","metadata":{"name":"p"},"spec":{"nodeName":"worker-1","x":{}},"status":{}}"#;

    #[tokio::test]
    async fn the_pods_node_is_asked_for_until_it_is_known() {
        let (url, server) = server(&[
            (404, REFUSED),
            (200, r#"{"kind":"Pod","spec":{}}"#),
            (200, POD),
        ]);
        let found = node_of_pod(&config(url), "kube-flannel", "p", Duration::from_secs(20)).await;
        assert_eq!(found.unwrap(), "worker-1");
        let path = "GET /api/v1/namespaces/kube-flannel/pods/p HTTP/1.1";
        let asked = server.join().unwrap();
        assert_eq!(asked.len(), 3);
        assert!(
            asked.iter().all(|line| line.replace('?', "") == path),
            "{asked:?}"
        );
    }

    #[tokio::test]
    async fn a_refusal_is_passed_on_when_the_patience_ends() {
        let (url, server) = server(&[(404, REFUSED)]);
        let found = node_of_pod(&config(url), "kube-flannel", "p", Duration::ZERO).await;
        let text = found.unwrap_err().to_string();
        assert!(
            text.contains("kube-flannel/p") && text.contains("not found"),
            "{text}"
        );
        server.join().unwrap();
    }

    #[tokio::test]
    async fn names_that_would_change_the_path_are_not_asked_for() {
        for wrong in ["", "..", "a/b", "a?b", "A", "%2e"] {
            let config = config("http://127.0.0.1:1".to_owned());
            let found = node_of_pod(&config, "ns", wrong, Duration::ZERO).await;
            assert!(matches!(found, Err(PodNodeError::Name(_))), "{wrong:?}");
        }
    }
}
