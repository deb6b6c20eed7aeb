use clap::CommandFactory;

use cni_shim::RunDir;

use super::*;
use crate::api::wire::{Reply, Status};

fn parse(words: &[&str]) -> Cli {
    Cli::try_parse_from(words).unwrap()
}

/// Starts an agent that sends every caller the same reply. Returns its root.
fn agent(reply: Reply, callers: usize) -> (tempfile::TempDir, std::thread::JoinHandle<()>) {
    let root = tempfile::tempdir().unwrap();
    let run_dir = RunDir::under(root.path());
    run_dir.make().unwrap();
    let listener = std::os::unix::net::UnixListener::bind(run_dir.socket()).unwrap();
    let server = std::thread::spawn(move || {
        for _ in 0..callers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            io::BufRead::read_line(&mut io::BufReader::new(&stream), &mut line).unwrap();
            let mut line = serde_json::to_vec(&reply).unwrap();
            line.push(b'\n');
            stream.write_all(&line).unwrap();
        }
    });
    (root, server)
}

fn code(root: &std::path::Path, words: &[&str]) -> u8 {
    let root = root.to_str().unwrap();
    execute(parse(&[&["tartan"], words, &["--root", root]].concat()))
}

#[test]
fn the_command_line_definition_is_valid() {
    Cli::command().debug_assert();
}

#[test]
fn status_exits_0_without_a_problem_and_1_with_one() {
    let healthy = status::tests::example();
    let sick = Status {
        problems: vec![status::tests::problem_of("no")],
        ..status::tests::example()
    };
    for (status, expected) in [(healthy, OK), (sick, PROBLEM)] {
        let (root, server) = agent(Reply::Ok(serde_json::to_value(&status).unwrap()), 2);
        assert_eq!(code(root.path(), &["status"]), expected);
        assert_eq!(code(root.path(), &["status", "-o", "json"]), expected);
        server.join().unwrap();
    }
}

#[test]
fn a_refused_request_and_an_unknown_answer_exit_1() {
    let (root, server) = agent(Reply::Error("no".into()), 1);
    assert_eq!(code(root.path(), &["peers"]), PROBLEM);
    server.join().unwrap();
    let (root, server) = agent(Reply::Ok(serde_json::json!({"routes": 7})), 1);
    assert_eq!(code(root.path(), &["routes"]), PROBLEM);
    server.join().unwrap();
}

#[test]
fn without_an_agent_commands_exit_3() {
    let root = tempfile::tempdir().unwrap();
    for command in [
        "status", "peers", "routes", "pods", "drops", "top", "capture",
    ] {
        assert_eq!(code(root.path(), &[command]), UNREACHABLE, "{command}");
    }
    for further in [&[][..], &["--live=1"]] {
        let words = [&["trace", "web", "10.244.2.3"][..], further].concat();
        assert_eq!(code(root.path(), &words), UNREACHABLE, "{words:?}");
    }
}

#[test]
fn a_wrong_command_line_exits_2() {
    for words in [
        &["tartan"][..],
        &["tartan", "fly"],
        &["tartan", "status", "-o", "xml"],
        &["tartan", "trace", "web"],
        &[
            "tartan",
            "trace",
            "web",
            "10.244.2.3",
            "--tcp",
            "80",
            "--icmp",
        ],
        &["tartan", "trace", "web", "10.244.2.3", "--live=900"],
    ] {
        let error = Cli::try_parse_from(words).unwrap_err();
        assert_eq!(error.exit_code(), i32::from(USAGE), "{words:?}");
    }
    let service = parse(&[
        "tartan",
        "service",
        "--agent-root",
        "/",
        "status",
        "--root",
        "/x",
    ]);
    assert_eq!(
        execute(service),
        USAGE,
        "only `tartan run` starts a service"
    );
    let service = parse(&[
        "tartan",
        "service",
        "--agent-root",
        "/",
        "run",
        "--no-such-flag",
    ]);
    assert_eq!(execute(service), USAGE);
}

#[test]
fn a_broken_configuration_exits_2() {
    let root = tempfile::tempdir().unwrap();
    let config = root.path().join("etc/tartan");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("tartan.toml"), "no-such-key = 1\n").unwrap();
    assert_eq!(code(root.path(), &["run"]), USAGE);
}

#[test]
fn the_root_after_the_command_overrides_the_one_before() {
    let path = |text: &str| Some(PathBuf::from(text));
    assert_eq!(root(path("/a"), None), path("/a"));
    assert_eq!(root(None, path("/b")), path("/b"));
    assert_eq!(root(path("/a"), path("/b")), path("/b"));
    assert_eq!(root(None, None), None);
    let Cli {
        root: before,
        command,
    } = parse(&["tartan", "--root", "/a", "run", "--net-conf", "n"]);
    let Command::Run(args) = command else {
        panic!("not run")
    };
    let args = with_root(*args, before);
    assert_eq!((args.root, args.net_conf), (path("/a"), path("n")));
}

#[test]
fn the_service_parses_the_arguments_of_its_keeper() {
    let words = [
        "tartan",
        "service",
        "--agent-root",
        "/",
        "--root",
        "/a",
        "run",
        "--strict-pods",
        "--net-conf=n",
    ];
    let Command::Service { arguments, .. } = parse(&words).command else {
        panic!("not service")
    };
    let inner =
        Cli::try_parse_from([OsString::from("tartan")].into_iter().chain(arguments)).unwrap();
    assert_eq!(inner.root, Some(PathBuf::from("/a")));
    let Command::Run(args) = inner.command else {
        panic!("not run")
    };
    assert_eq!(args.strict_pods, Some(true));
}
