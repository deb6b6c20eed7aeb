//! What the runtime asks for: the verb and its environment variables.
//!
//! Parsed once, before standard input is read; what a verb does not need is
//! not looked at (SPEC section 2, "Parameters").

use std::ffi::OsString;

use cni_shim::{PodName, attachment};

/// One request, its parameters proven.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Attach a pod.
    Add(AddRequest),
    /// Detach it.
    Del(Key),
    /// Say whether ADD could be served.
    Status,
    /// Say which versions are spoken.
    Version,
}

/// What ADD needs to know.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AddRequest {
    /// Which attachment.
    pub(crate) key: Key,
    /// Path of the pod's network namespace.
    pub(crate) netns: String,
    /// The Kubernetes pod, where the runtime names one.
    pub(crate) pod: Option<PodName>,
}

/// What names an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// `CNI_CONTAINERID`.
    pub(crate) container: String,
    /// `CNI_IFNAME`.
    pub(crate) ifname: String,
}

/// Why the environment is no request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("required env variables [{}] missing", names.join(","))]
    Missing { names: Vec<&'static str> },
    #[error("unknown CNI_COMMAND: {value}")]
    UnknownVerb { value: String },
    #[error(
        "CNI_COMMAND {verb} is not offered by this version of tartan-cni: \
         set {remedy} in the network configuration"
    )]
    NotOffered {
        verb: &'static str,
        remedy: &'static str,
    },
    #[error("invalid {name}")]
    Invalid {
        name: &'static str,
        source: attachment::Error,
    },
    #[error("{name} is not UTF-8")]
    NotText { name: &'static str },
    #[error("invalid CNI_ARGS: {part:?} is not KEY=VALUE")]
    Args { part: String },
    #[error(
        "CNI_ARGS {key}={value}: this version of tartan-cni chooses the {what} itself; leave {key} out"
    )]
    Unsupported {
        key: &'static str,
        value: String,
        what: &'static str,
    },
}

impl Request {
    /// Reads the request through `variable`, which looks up one environment
    /// variable. `Ok(None)` when there is no CNI_COMMAND at all.
    pub(crate) fn parse(
        variable: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Option<Request>, Error> {
        let environment = Environment { variable };
        let Some(verb) = environment.text("CNI_COMMAND")? else {
            return Ok(None);
        };
        match verb.as_str() {
            "VERSION" => Ok(Request::Version),
            "STATUS" => Ok(Request::Status),
            "ADD" => environment.add().map(Request::Add),
            "DEL" => environment.key(&[]).map(Request::Del),
            "CHECK" => Err(Error::NotOffered {
                verb: "CHECK",
                remedy: "\"disableCheck\": true",
            }),
            "GC" => Err(Error::NotOffered {
                verb: "GC",
                remedy: "\"disableGC\": true",
            }),
            _ => Err(Error::UnknownVerb { value: verb }),
        }
        .map(Some)
    }
}

struct Environment<F> {
    variable: F,
}

impl<F: Fn(&'static str) -> Option<OsString>> Environment<F> {
    fn add(&self) -> Result<AddRequest, Error> {
        let key = self.key(&["CNI_NETNS"])?;
        let netns = self.text("CNI_NETNS")?.unwrap_or_default();
        let arguments = self.text("CNI_ARGS")?.unwrap_or_default();
        Ok(AddRequest {
            key,
            netns,
            pod: parse_arguments(&arguments)?,
        })
    }

    /// The key, once every required variable is known to be there: all that
    /// are missing are named at once.
    fn key(&self, also_required: &[&'static str]) -> Result<Key, Error> {
        let mut names = Vec::new();
        for name in ["CNI_CONTAINERID", "CNI_IFNAME"]
            .iter()
            .chain(also_required)
        {
            if self.text(name)?.is_none() {
                names.push(*name);
            }
        }
        if !names.is_empty() {
            return Err(Error::Missing { names });
        }
        let container = self.text("CNI_CONTAINERID")?.unwrap_or_default();
        let ifname = self.text("CNI_IFNAME")?.unwrap_or_default();
        let invalid = |name| move |source| Error::Invalid { name, source };
        attachment::check_container(&container).map_err(invalid("CNI_CONTAINERID"))?;
        attachment::check_ifname(&ifname).map_err(invalid("CNI_IFNAME"))?;
        Ok(Key { container, ifname })
    }

    /// An empty variable counts as none, as in the Go plugins.
    fn text(&self, name: &'static str) -> Result<Option<String>, Error> {
        match (self.variable)(name) {
            Some(value) if !value.is_empty() => value
                .into_string()
                .map(Some)
                .map_err(|_| Error::NotText { name }),
            _ => Ok(None),
        }
    }
}

/// `K=V;K=V`. Unknown keys are somebody else's; a requested address or MAC is
/// refused rather than ignored.
fn parse_arguments(arguments: &str) -> Result<Option<PodName>, Error> {
    let (mut namespace, mut name) = (String::new(), String::new());
    for part in arguments.split(';').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').ok_or_else(|| Error::Args {
            part: part.to_owned(),
        })?;
        let unsupported = |key, what| {
            Err(Error::Unsupported {
                key,
                value: value.to_owned(),
                what,
            })
        };
        match key {
            "K8S_POD_NAMESPACE" => namespace = value.to_owned(),
            "K8S_POD_NAME" => name = value.to_owned(),
            "IP" if !value.is_empty() => return unsupported("IP", "address"),
            "MAC" if !value.is_empty() => return unsupported("MAC", "MAC address"),
            _ => {}
        }
    }
    Ok((!name.is_empty()).then_some(PodName { namespace, name }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::os::unix::ffi::OsStringExt;

    fn parse(pairs: &[(&'static str, &str)]) -> Result<Option<Request>, Error> {
        let map: HashMap<&str, OsString> =
            pairs.iter().map(|(k, v)| (*k, OsString::from(v))).collect();
        Request::parse(|name| map.get(name).cloned())
    }

    const ADD: [(&str, &str); 4] = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_NETNS", "/run/netns/x"),
    ];

    #[test]
    fn an_add_is_read() {
        let mut pairs = ADD.to_vec();
        let args = "IgnoreUnknown=1;K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=shop;X=a=b";
        pairs.push(("CNI_ARGS", args));
        let Ok(Some(Request::Add(add))) = parse(&pairs) else {
            panic!("no ADD");
        };
        assert_eq!(add.key.container, "c1");
        assert_eq!(add.key.ifname, "eth0");
        assert_eq!(add.netns, "/run/netns/x");
        let pod = add.pod.unwrap();
        assert_eq!(
            (pod.namespace.as_str(), pod.name.as_str()),
            ("shop", "web-0")
        );
    }

    #[test]
    fn everything_missing_is_named_at_once() {
        let error = parse(&[("CNI_COMMAND", "ADD"), ("CNI_IFNAME", "")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "required env variables [CNI_CONTAINERID,CNI_IFNAME,CNI_NETNS] missing"
        );
        let error = parse(&[("CNI_COMMAND", "DEL")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "required env variables [CNI_CONTAINERID,CNI_IFNAME] missing"
        );
    }

    #[test]
    fn del_does_without_a_namespace() {
        assert!(matches!(
            parse(&[
                ("CNI_COMMAND", "DEL"),
                ("CNI_CONTAINERID", "c1"),
                ("CNI_IFNAME", "eth0"),
                ("CNI_ARGS", "nonsense"),
            ]),
            Ok(Some(Request::Del(_)))
        ));
    }

    #[test]
    fn version_and_status_need_nothing_and_no_command_is_no_request() {
        for (verb, expected) in [("VERSION", Request::Version), ("STATUS", Request::Status)] {
            assert_eq!(parse(&[("CNI_COMMAND", verb)]).unwrap(), Some(expected));
        }
        assert_eq!(parse(&[]).unwrap(), None);
        assert_eq!(parse(&[("CNI_COMMAND", "")]).unwrap(), None);
    }

    #[test]
    fn verbs_not_offered_name_the_way_out() {
        for (verb, remedy) in [("CHECK", "disableCheck"), ("GC", "disableGC")] {
            let error = parse(&[("CNI_COMMAND", verb)]).unwrap_err();
            assert!(error.to_string().contains(remedy), "{error}");
        }
        let error = parse(&[("CNI_COMMAND", "add")]).unwrap_err();
        assert_eq!(error.to_string(), "unknown CNI_COMMAND: add");
    }

    #[test]
    fn bad_values_name_their_variable() {
        for (at, value) in [(1, "../x"), (2, "a/b"), (2, "0123456789abcdef")] {
            let mut pairs = ADD;
            pairs[at].1 = value;
            let error = parse(&pairs).unwrap_err();
            assert!(error.to_string().contains(pairs[at].0), "{error}");
        }
        for args in ["nonsense", "IP=10.0.0.5", "MAC=02:00:00:00:00:01"] {
            let mut pairs = ADD.to_vec();
            pairs.push(("CNI_ARGS", args));
            let error = parse(&pairs).unwrap_err();
            assert!(error.to_string().contains("CNI_ARGS"), "{error}");
        }
        let error = Request::parse(|_| Some(OsString::from_vec(vec![0xff]))).unwrap_err();
        assert_eq!(error.to_string(), "CNI_COMMAND is not UTF-8");
    }

    proptest! {
        #[test]
        fn no_environment_makes_it_panic(
            verb in prop_oneof![Just("ADD".to_owned()), Just("DEL".to_owned()), ".*"],
            container in ".*", ifname in ".*", args in ".*",
        ) {
            let _ = parse(&[
                ("CNI_COMMAND", &verb),
                ("CNI_CONTAINERID", &container),
                ("CNI_IFNAME", &ifname),
                ("CNI_NETNS", "/x"),
                ("CNI_ARGS", &args),
            ]);
        }
    }
}
