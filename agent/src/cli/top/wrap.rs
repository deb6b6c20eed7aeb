//! Breaks sentences into lines, so that what is drawn and the room that it takes are known before it is drawn.

/// The text in lines of at most `width` cells, broken at blanks; a word that is longer is broken where a line ends.
/// Without width there is one line.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    if width == 0 {
        return vec![text.to_owned()];
    }
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let mut length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        let mut rest = word.chars();
        while used + length > width {
            line.extend(rest.by_ref().take(width - used));
            length -= width - used;
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        line.extend(rest);
        used += length;
    }
    if used > 0 || lines.is_empty() {
        lines.push(line);
    }
    lines
}

/// The same in `most` lines at most, the last of which ends with `…` where there is more.
pub(super) fn wrapped_within(text: &str, width: usize, most: usize) -> Vec<String> {
    let mut lines = wrapped(text, width);
    if lines.len() > most {
        lines.truncate(most);
        if let Some(last) = lines.last_mut() {
            *last = last.chars().take(width.saturating_sub(1)).collect();
            last.push('…');
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_blanks_and_hold_every_word() {
        assert_eq!(wrapped("no node owns it", 8), ["no node", "owns it"]);
        assert_eq!(wrapped("no node owns it", 80), ["no node owns it"]);
        assert_eq!(
            wrapped("a fd00:10:244:1::2 b", 6),
            ["a", "fd00:1", "0:244:", "1::2 b"]
        );
        assert_eq!(wrapped("abcdef", 3), ["abc", "def"]);
        assert_eq!(wrapped("", 8), [""]);
        assert_eq!(wrapped("any text", 0), ["any text"]);
        for width in 1..40 {
            let text = "the sender gets ICMP net-unreachable, a-very-long-word-without-any-blank";
            let lines = wrapped(text, width);
            assert!(lines.iter().all(|line| line.chars().count() <= width));
            let bare = |text: &str| text.replace(' ', "");
            assert_eq!(bare(&lines.concat()), bare(text), "{width}");
        }
    }

    #[test]
    fn what_is_left_out_is_marked() {
        assert_eq!(wrapped_within("one two three", 5, 2), ["one", "two…"]);
        assert_eq!(wrapped_within("whole words", 5, 1), ["whol…"]);
        assert_eq!(wrapped_within("one two", 5, 2), ["one", "two"]);
    }
}
