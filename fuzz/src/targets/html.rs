//! The page of a report, looked at as a browser would: which tags and attributes stand in it.

/// Tags whose text is no HTML.
const RAW: [&str; 2] = ["script", "style"];

/// All tags that a page of g2g has.
const TAGS: [&str; 44] = [
    "a",
    "body",
    "button",
    "circle",
    "code",
    "details",
    "div",
    "figcaption",
    "figure",
    "footer",
    "h1",
    "h2",
    "h3",
    "head",
    "header",
    "html",
    "label",
    "li",
    "line",
    "main",
    "meta",
    "nav",
    "option",
    "p",
    "path",
    "rect",
    "script",
    "section",
    "select",
    "span",
    "strong",
    "style",
    "summary",
    "sup",
    "svg",
    "table",
    "tbody",
    "td",
    "text",
    "th",
    "thead",
    "title",
    "tr",
    "ul",
];

/// Fails where the page has a tag that no page of g2g has, or an attribute that runs something.
///
/// # Panics
///
/// As said.
pub(crate) fn assert_is_safe(page: &str) {
    let mut rest = page;
    while let Some((_, behind)) = rest.split_once('<') {
        rest = behind;
        let name: String =
            rest.trim_start_matches('/').chars().take_while(char::is_ascii_alphanumeric).collect();
        if rest.starts_with("!--") {
            rest = rest.split_once("-->").map_or("", |(_, behind)| behind);
            continue;
        }
        let is_known = TAGS.contains(&&*name) || rest.starts_with("!doctype html>");
        assert!(is_known, "<{rest:.60}");
        let is_end = rest.starts_with('/');
        rest = attributes(
            rest.trim_start_matches('/').trim_start_matches(&*name),
            |attribute, value| {
                let attribute = attribute.to_ascii_lowercase();
                assert!(
                    !attribute.starts_with("on") && attribute != "srcdoc",
                    "{attribute}={value}"
                );
                let leads = ["href", "src", "action", "formaction", "xlink:href", "data"];
                let is_own = value.starts_with('#');
                assert!(!leads.contains(&&*attribute) || is_own, "{attribute}={value}");
            },
        );
        if RAW.contains(&&*name) && !is_end {
            let end = rest.find(&format!("</{name}")).expect("what is begun is ended");
            rest = &rest[end..];
        }
    }
}

/// Gives `each` the attributes of a tag; what stands behind the tag.
fn attributes(mut rest: &str, mut each: impl FnMut(&str, &str)) -> &str {
    loop {
        rest = rest.trim_start_matches(|letter: char| letter.is_whitespace() || letter == '/');
        if rest.is_empty() {
            return "";
        }
        if let Some(behind) = rest.strip_prefix('>') {
            return behind;
        }
        let ends = |letter: char| letter.is_whitespace() || "=>/".contains(letter);
        let (name, behind) = rest.split_at(rest.find(ends).unwrap_or(rest.len()).max(1));
        rest = behind;
        let Some(behind) = rest.trim_start().strip_prefix('=') else {
            each(name, "");
            continue;
        };
        let behind = behind.trim_start();
        let (value, behind) = match behind.chars().next() {
            Some(quote @ ('"' | '\'')) => {
                behind[1..].split_once(quote).expect("what is quoted ends")
            }
            _ => behind.split_at(behind.find(['>', ' ', '\n']).unwrap_or(behind.len())),
        };
        each(name, value);
        rest = behind;
    }
}
