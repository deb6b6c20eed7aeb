//! The versions of the CNI specification, and which one a request is in.

/// A version of the CNI specification that this plugin speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 0.1.0: one address of each family, in `ip4` and `ip6`.
    V0_1_0,
    /// 0.2.0: the same, and VERSION.
    V0_2_0,
    /// 0.3.0: interfaces, and lists of plugins.
    V0_3_0,
    /// 0.3.1: the same.
    V0_3_1,
    /// 0.4.0: CHECK.
    V0_4_0,
    /// 1.0.0: an address no longer says its family.
    V1_0_0,
    /// 1.1.0: GC and STATUS.
    V1_1_0,
}

impl Version {
    /// Every version spoken, oldest first.
    pub const ALL: [Version; 7] = [
        Version::V0_1_0,
        Version::V0_2_0,
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];

    /// The newest version spoken.
    pub const NEWEST: Version = Version::V1_1_0;

    /// The string the specification knows it by.
    pub fn name(self) -> &'static str {
        match self {
            Version::V0_1_0 => "0.1.0",
            Version::V0_2_0 => "0.2.0",
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }

    /// The names of [`Version::ALL`].
    pub fn names() -> [&'static str; 7] {
        Version::ALL.map(Version::name)
    }

    /// The version of exactly this name: "1.0" is none.
    pub fn named(name: &str) -> Option<Version> {
        Version::ALL.into_iter().find(|v| v.name() == name)
    }
}

/// Major, minor and patch, as libcni reads them (pkg/version/plugin.go,
/// `ParseVersion`): one to three whole numbers. None for anything else.
pub fn parts(name: &str) -> Option<[u32; 3]> {
    let mut parts = [0; 3];
    let mut given = name.split('.');
    for part in &mut parts {
        let Some(text) = given.next() else { break };
        *part = text.parse().ok()?;
    }
    given.next().is_none().then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exact() {
        for version in Version::ALL {
            assert_eq!(Version::named(version.name()), Some(version));
        }
        for name in ["1.0", "1.0.0 ", "v1.0.0", "0.4", "", "1.1.1"] {
            assert_eq!(Version::named(name), None, "{name:?}");
        }
    }

    #[test]
    fn parts_order_versions() {
        assert_eq!(parts("1.0"), Some([1, 0, 0]));
        assert_eq!(parts("0.4.0"), Some([0, 4, 0]));
        assert!(parts("0.10.0") > parts("0.4.0"));
        for name in ["", "1.", "1.0.0.0", "a.b", "1.-1"] {
            assert_eq!(parts(name), None, "{name:?}");
        }
    }
}
