//! Files of `--catalogue`.

use g2g::{
    plan::catalogue::Catalogue,
    show::{catalogue_entry_json, catalogue_entry_page, catalogue_json, catalogue_page},
};

use super::assert_sentence;

/// What a user's file adds is shown: no panic, one sentence of what is wrong.
pub(crate) fn take(file: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(file) else { return false };
    let whole = match Catalogue::built_in().with(text) {
        Ok(whole) => whole,
        Err(bad) => {
            assert_sentence(&bad.to_string());
            return false;
        }
    };
    catalogue_page(&whole).styled();
    serde_json::from_str::<serde_json::Value>(&catalogue_json(&whole)).expect("it is JSON");
    let names = whole.gpu.keys().chain(whole.instance.keys()).filter(|name| whole.is_added(name));
    for name in names {
        let entry = whole.entry(name).expect("it was added");
        catalogue_entry_page(&whole, name, entry).styled();
        let json = catalogue_entry_json(&whole, name, entry);
        serde_json::from_str::<serde_json::Value>(&json).expect("it is JSON");
    }
    true
}
