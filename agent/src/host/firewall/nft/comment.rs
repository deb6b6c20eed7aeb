//! The comment of a rule, by which Tartan knows its own.

/// A comment as nft and iptables-nft keep it: type, length, text, zero.
pub(super) fn userdata(comment: &str) -> Vec<u8> {
    let length = u8::try_from(comment.len() + 1).unwrap_or(u8::MAX);
    let text = comment.bytes().chain([0]);
    [COMMENT, length].into_iter().chain(text).collect()
}

/// The comment among what a rule carries for its writer; any program may have written it.
pub(super) fn comment(userdata: &[u8]) -> Option<String> {
    let mut rest = userdata;
    while let [kind, length, behind @ ..] = rest {
        let value = behind.get(..usize::from(*length))?;
        if *kind == COMMENT {
            let text = value.split(|byte| *byte == 0).next()?;
            return String::from_utf8(text.to_vec()).ok();
        }
        rest = behind.get(usize::from(*length)..)?;
    }
    None
}

/// `NFTNL_UDATA_RULE_COMMENT`
const COMMENT: u8 = 0;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_comment_is_read_back(text in "[ -~]{0,100}") {
            prop_assert_eq!(comment(&userdata(&text)), Some(text.clone()));
            // Other programs put other things beside it.
            let mut beside = vec![7, 2, 1, 1];
            beside.extend(userdata(&text));
            prop_assert_eq!(comment(&beside), Some(text));
        }

        #[test]
        fn any_userdata_ends(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let found = comment(&bytes);
            prop_assert!(found.is_none_or(|text| text.len() <= bytes.len()));
        }
    }
}
