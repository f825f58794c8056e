//! What is wrong with a TOML file that the user has written, and where.

use toml::Spanned;

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}{}: {problem}", in_key(.key))]
pub struct BadFile {
    /// Counted from 1.
    pub line: usize,
    /// The key, with the tables it is in; empty if the line is no TOML.
    pub key: String,
    /// What is wrong with it, and what to write.
    pub problem: String,
}

fn in_key(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!(", `{key}`") }
}

/// What is wrong, and how many bytes are before it.
pub(super) struct Problem {
    at: usize,
    key: String,
    text: String,
}

impl Problem {
    /// With `value`, which `key` has.
    pub(super) fn new<T>(value: &Spanned<T>, key: &str, text: impl Into<String>) -> Self {
        Self { at: value.span().start, key: key.to_owned(), text: text.into() }
    }

    /// Of a file with this content.
    pub(super) fn in_file(self, content: &str) -> BadFile {
        let line = 1 + content.bytes().take(self.at).filter(|&byte| byte == b'\n').count();
        // A value or a key that is quoted in it may have line breaks.
        let on_one_line = |text: String| text.replace('\n', " ");
        BadFile { line, key: on_one_line(self.key), problem: on_one_line(self.text) }
    }

    /// The same with another text.
    pub(super) fn told(self, text: impl FnOnce(String) -> String) -> Self {
        Self { text: text(self.text), ..self }
    }
}

impl From<toml::de::Error> for Problem {
    fn from(mut error: toml::de::Error) -> Self {
        // Only without the text to show does the error tell the key, behind its message.
        error.set_input(None);
        let shown = error.to_string();
        let key = shown.rsplit_once("in `").and_then(|(_, key)| key.trim_end().strip_suffix('`'));
        Self {
            at: error.span().map_or(0, |span| span.start),
            key: key.unwrap_or_default().to_owned(),
            text: error.message().to_owned(),
        }
    }
}
