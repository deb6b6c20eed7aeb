//! Text that another host wrote, for a sentence of ours.

/// The first `most` characters of `text` on one line, without characters that a terminal or a log would obey.
pub(super) fn excerpt(text: &str, most: usize) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut shown: String = text.chars().take(most).map(plain).collect();
    if text.chars().nth(most).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_it_is_obeyed() {
        assert_eq!(excerpt("a\u{1b}[31m\nb\u{9b}1mc", 40), "a [31m b 1mc");
        assert_eq!(excerpt("four", 4), "four");
        assert_eq!(excerpt("fives", 4), "five…");
    }
}
