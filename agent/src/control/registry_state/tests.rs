use super::*;

fn etcd() -> RegistryPlace {
    RegistryPlace::Etcd {
        key: "/coreos.com/network".to_owned(),
    }
}

fn settings(net_conf: &str) -> RegistrySettings {
    RegistrySettings {
        net_conf: Some(net_conf.to_owned()),
        ..RegistrySettings::default()
    }
}

fn own() -> Vec<IpNet> {
    vec!["10.244.1.0/24".parse().unwrap()]
}

#[test]
fn a_net_conf_that_would_take_this_nodes_subnets_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("registry-net-conf.json");
    let mut state = RegistryState::new("etcd", false);
    let good = "{\"Network\":\"10.244.0.0/16\"}";
    assert!(state.learn(settings(good), &own(), &etcd(), &copy));
    let other = "{\"Network\":\"10.245.0.0/16\"}";
    assert!(!state.learn(settings(other), &own(), &etcd(), &copy));
    assert!(state.problems()[0].sentence().contains("10.244.1.0/24"));
    assert_eq!(std::fs::read_to_string(&copy).unwrap(), good);
    assert!(state.learn(settings(other), &[], &etcd(), &copy));
}

#[test]
fn a_net_conf_that_cannot_be_used_leaves_the_copy_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("state/registry-net-conf.json");
    let mut state = RegistryState::new("etcd", false);
    let good = "{\"Network\":\"10.244.0.0/16\"}";
    assert!(state.learn(settings(good), &own(), &etcd(), &copy));
    assert!(!state.learn(settings(good), &own(), &etcd(), &copy));
    assert!(state.problems().is_empty());
    assert!(!state.learn(settings("{\"Network\":\"x\"}"), &own(), &etcd(), &copy));
    let problems = state.problems();
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].sentence().contains("/coreos.com/network"),
        "{}",
        problems[0]
    );
    assert!(state.in_touch().last_refused.is_some());
    assert_eq!(std::fs::read_to_string(&copy).unwrap(), good);
    assert!(!state.learn(settings(good), &own(), &etcd(), &copy));
    assert!(state.problems().is_empty());
}

#[test]
fn since_when_it_answers_changes_only_with_whether_it_does() {
    let mut state = RegistryState::new("etcd", false);
    assert!(!state.in_touch().answers && state.in_touch().since.is_none());
    let lost = |reason: &str| Contact::Lost {
        reason: reason.to_owned(),
    };
    state.contact(lost("refused"));
    let since = state.in_touch().since;
    state.contact(lost("timed out"));
    assert_eq!(state.in_touch().since, since);
    assert!(state.problems()[0].sentence().contains("timed out"));
    state.contact(Contact::InTouch);
    assert!(state.in_touch().answers && state.in_touch().since > since);
    assert!(state.problems().is_empty());
}

#[test]
fn refused_records_are_shown_up_to_a_number() {
    let mut state = RegistryState::new("etcd", false);
    let record = |i: u32| RefusedRecord {
        place: RegistryPlace::Etcd {
            key: format!("/coreos.com/network/subnets/{i}"),
        },
        name: format!("{i}"),
        public: None,
        subnets: Vec::new(),
        reason: "it is no lease".to_owned(),
    };
    state.pass_over((0..100).map(record).collect());
    let problems = state.problems();
    assert!(problems.len() < 30, "{}", problems.len());
    assert_eq!(problems.last().unwrap().code(), "more-of-a-kind");
    state.pass_over(Vec::new());
    assert!(state.problems().is_empty());
}
