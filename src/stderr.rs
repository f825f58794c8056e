//! Lines on standard error.

use std::{
    borrow::Cow,
    fmt::Write as _,
    io::{self, Write},
};

/// Writes a line to standard error; a closed one is no error. The line is one write: other
/// processes write there too, and `writeln!` would write each part of a sentence alone.
pub(crate) fn say(line: &str) {
    let _ = io::stderr().write_all(format!("{}\n", visible(line)).as_bytes());
}

/// `text` with every character escaped that a terminal would obey, since names of hosts, GPUs and
/// files may hold anything: control characters other than line breaks and tabs, and marks that
/// change the direction of writing. The escapes are JSON's, so strings in JSON keep their meaning.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if is_obeyed(letter) {
            let _ = write!(shown, "\\u{:04x}", u32::from(letter));
        } else {
            shown.push(letter);
        }
    }
    Cow::Owned(shown)
}

fn is_obeyed(letter: char) -> bool {
    let turns = matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || (letter.is_control() && !matches!(letter, '\n' | '\t'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_and_means_the_same_in_json() {
        for text in ["GPU 0 -> 1\n\t450 GB/s, µs ×", ""] {
            assert!(matches!(visible(text), Cow::Borrowed(same) if same == text));
        }
        let hostile = "\u{1b}[2J\u{9b}31m\r\u{7f}\u{202e}\0";
        let shown = visible(hostile);
        assert_eq!(shown, "\\u001b[2J\\u009b31m\\u000d\\u007f\\u202e\\u0000");
        assert_eq!(serde_json::from_str::<String>(&format!("\"{shown}\"")).unwrap(), hostile);
    }
}
