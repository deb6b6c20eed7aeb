//! The Kubernetes API server of the tests as a program, for tests that are no Rust: prints its URL and serves until it is
//! killed.

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::panic;
use std::path::PathBuf;
use std::process::{self, ExitCode};
use std::thread;

use clap::Parser;
use testbed::apiserver::ApiServer;

/// A Kubernetes API server for tests: Nodes alone, in memory, over HTTP. Faults: POST /test/ACTION, where ACTION is
/// compact, bookmark, drop-watches, cut-watches, black-hole?seconds=N, fail?code=CODE&times=N&retry-after=SECONDS or
/// nodes?count=N.
#[derive(Parser)]
struct Arguments {
    /// Where it listens; port 0 is a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Writes the file `kubeconfig` into this folder, and of the first --token `kubeconfig-token`, with the token, and
    /// `kubeconfig-as`, in the name of its user
    #[arg(long, value_name = "FOLDER")]
    kubeconfig: Option<PathBuf>,
    /// Generates so many Nodes of 10 KB
    #[arg(long, value_name = "N", default_value_t = 0)]
    nodes: u32,
    /// A bearer token, its user and its rights, as in `secret=alice:get nodes,list nodes`, or `=anonymous:*` for requests
    /// without a token
    #[arg(long = "token", value_name = "TOKEN=USER:RIGHTS")]
    tokens: Vec<String>,
    /// Creates the Nodes of this file: a JSON object, or a list of them
    #[arg(long, value_name = "FILE")]
    load: Option<PathBuf>,
}

fn main() -> ExitCode {
    // A server that has lost a thread would let its clients wait.
    let say = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        say(panic);
        process::abort();
    }));
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tartan-test-apiserver: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let server = ApiServer::start_on(arguments.listen);
    let mut first = None;
    for text in &arguments.tokens {
        let (token, user, rights) =
            token(text).ok_or_else(|| format!("--token {text}: TOKEN=USER:RIGHTS is expected"))?;
        server.allow(token, user, &rights.split(',').collect::<Vec<_>>());
        first.get_or_insert((token, user));
    }
    if let Some(folder) = &arguments.kubeconfig {
        server.kubeconfig(folder);
        if let Some((token, user)) = first {
            server.kubeconfig_with(folder, token);
            server.kubeconfig_as(folder, user);
        }
    }
    if let Some(file) = &arguments.load {
        load(&server, file).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    server.generate(arguments.nodes);
    println!("{}", server.url());
    io::stdout().flush().map_err(|error| error.to_string())?;
    loop {
        thread::park();
    }
}

/// TOKEN=USER:RIGHTS; the user's name may hold colons, as `system:serviceaccount:NAMESPACE:NAME` does.
fn token(text: &str) -> Option<(&str, &str, &str)> {
    let (token, rest) = text.split_once('=')?;
    let (user, rights) = rest.rsplit_once(':')?;
    Some((token, user, rights))
}

fn load(server: &ApiServer, file: &PathBuf) -> Result<(), String> {
    let text = fs::read(file).map_err(|error| error.to_string())?;
    let nodes: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let nodes = match nodes {
        serde_json::Value::Array(nodes) => nodes,
        node => vec![node],
    };
    for node in nodes {
        if !node
            .pointer("/metadata/name")
            .is_some_and(|name| name.is_string())
        {
            return Err("a Node without metadata.name".to_owned());
        }
        server.put_node(node);
    }
    Ok(())
}
