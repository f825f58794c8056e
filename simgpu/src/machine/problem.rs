//! Why a machine file is no machine.

use toml::Spanned;

/// What is wrong with a file, and where.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(super) struct Problem {
    /// Bytes before it in the text.
    pub at: usize,
    /// Empty if it has none.
    pub key: String,
    pub text: String,
}

impl Problem {
    pub(super) fn new<T>(value: &Spanned<T>, key: &str, text: String) -> Self {
        Self { at: value.span().start, key: key.to_owned(), text: text.replace('\n', " ") }
    }

    /// Of the file as a whole.
    pub(super) fn of_all(text: String) -> Self {
        Self { at: 0, key: String::new(), text }
    }
}

impl From<toml::de::Error> for Problem {
    fn from(mut error: toml::de::Error) -> Self {
        // Only without the text to show does the error tell the key, behind its message.
        error.set_input(None);
        let shown = error.to_string();
        let key = shown.rsplit_once("in `").and_then(|(_, key)| key.trim_end().strip_suffix('`'));
        let at = error.span().map_or(0, |span| span.start);
        // A value or a key that is quoted in it may have line breaks.
        let line = |text: &str| text.replace('\n', " ");
        Self { at, key: line(key.unwrap_or_default()), text: line(error.message()) }
    }
}
