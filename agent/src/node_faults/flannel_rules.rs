//! flannel's rules in the packet filter without a flanneld: they masquerade and accept by the networks of a configuration
//! that may be old.

use crate::problems::Problem;

/// Judges what was found of flannel's rules. Whether a flanneld runs is asked only where there are any.
pub fn judge(rules: &[String], is_flanneld_running: impl FnOnce() -> bool) -> Option<Problem> {
    if rules.is_empty() || is_flanneld_running() {
        return None;
    }
    Some(Problem::FlannelRulesLeft {
        rules: rules.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_a_flanneld_that_runs_are_its_own() {
        let rules = ["ip nat FLANNEL-POSTRTG".to_owned()];
        assert!(judge(&rules, || false).is_some());
        assert_eq!(judge(&rules, || true), None);
        assert_eq!(judge(&[], || panic!("asked without need")), None);
    }
}
