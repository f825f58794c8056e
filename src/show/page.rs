//! Titles, tables and lines, as text for a terminal or as Markdown for a comment or an issue.

use std::io;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use terminal_size::terminal_size_of;

/// Titles, tables and sentences, in their order.
#[derive(Clone, Debug, Default)]
pub struct Page {
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Part {
    Title(String),
    Grid(Grid),
    /// Lines; indented ones are the items of a list.
    Lines(String),
}

/// Cells under a head, numbers on the right and words on the left.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Grid {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
    #[serde(skip)]
    are_words: Vec<bool>,
}

/// A column of a table of `T`: its head, and its cell for each of them.
pub(super) type Column<T> = (&'static str, fn(T) -> String);

impl Grid {
    /// A head without rows; the columns hold numbers.
    pub(super) fn new(head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let head: Vec<String> = head.into_iter().map(Into::into).collect();
        Self { are_words: vec![false; head.len()], head, rows: Vec::new() }
    }

    /// A row for each item; the columns hold numbers.
    pub(super) fn of<T: Copy>(columns: &[Column<T>], items: impl IntoIterator<Item = T>) -> Self {
        let mut grid = Self::new(columns.iter().map(|(head, _)| *head));
        for item in items {
            grid.row(columns.iter().map(|(_, cell)| cell(item)));
        }
        grid
    }

    /// A row and a column for each label, with a cell for the indices of both.
    pub(super) fn square(labels: &[String], cell: impl Fn(usize, usize) -> String) -> Self {
        let mut grid = Self::new([""].into_iter().chain(labels.iter().map(String::as_str)));
        for (row, label) in labels.iter().enumerate() {
            let cells = (0..labels.len()).map(|column| cell(row, column));
            grid.row([label.clone()].into_iter().chain(cells));
        }
        grid
    }

    /// The same with words in these columns.
    pub(super) fn words(mut self, columns: &[&str]) -> Self {
        self.are_words = self.head.iter().map(|name| columns.contains(&&**name)).collect();
        self
    }

    /// The same with words in all columns but these.
    pub(super) fn numbers(mut self, columns: &[&str]) -> Self {
        self.are_words = self.head.iter().map(|name| !columns.contains(&&**name)).collect();
        self
    }

    /// The same without empty columns.
    pub(super) fn without_empty(mut self) -> Self {
        for column in (0..self.head.len()).rev() {
            if self.rows.iter().all(|row| row[column].is_empty()) {
                self.head.remove(column);
                self.are_words.remove(column);
                for row in &mut self.rows {
                    row.remove(column);
                }
            }
        }
        self
    }

    /// Appends a row.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn text(&self, width: Option<u16>) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        if let Some(width) = width {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        // A list of facts has no head.
        if self.head.iter().any(|name| !name.is_empty()) {
            table.set_header(self.head.iter().map(Cell::new));
        }
        for row in &self.rows {
            table.add_row(row.iter().map(Cell::new));
        }
        for (column, are_words) in table.column_iter_mut().zip(&self.are_words) {
            if !are_words {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.trim_fmt()
    }

    /// A table of GitHub's Markdown (its specification, 4.10).
    fn markdown(&self) -> String {
        let rule = self.are_words.iter().map(|words| if *words { "---" } else { "---:" });
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = format!("| {} |\n", rule.collect::<Vec<&str>>().join(" | "));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        line(&self.head) + &rule + &rows
    }
}

impl Page {
    /// Appends a title.
    pub(super) fn title(&mut self, title: impl Into<String>) {
        self.parts.push(Part::Title(title.into()));
    }

    /// Appends a table.
    pub(super) fn grid(&mut self, grid: Grid) {
        self.parts.push(Part::Grid(grid));
    }

    /// Appends lines; indented ones belong to the line before.
    pub fn lines(&mut self, lines: &str) {
        self.parts.push(Part::Lines(lines.to_owned()));
    }

    /// For a terminal, as wide as it is.
    pub fn text(&self) -> String {
        self.text_within(terminal_size_of(io::stdout()).map(|(width, _)| width.0))
    }

    fn text_within(&self, width: Option<u16>) -> String {
        let part = |part: &Part| match part {
            Part::Title(title) => format!("{title}\n"),
            Part::Grid(grid) => format!("{}\n", grid.text(width)),
            Part::Lines(lines) => lines.clone(),
        };
        self.parts.iter().map(part).collect()
    }

    /// For viewers of GitHub's Markdown.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Title(title) => text += &format!("### {}\n\n", escaped(title)),
                Part::Grid(grid) => text += &format!("{}\n", grid.markdown()),
                Part::Lines(lines) => text += &paragraphs(lines),
            }
        }
        text.truncate(text.trim_end().len());
        text + "\n"
    }
}

/// Lines as paragraphs, indented ones as the items of a list.
fn paragraphs(lines: &str) -> String {
    let mut text = String::new();
    let mut is_list = false;
    for line in lines.lines().filter(|line| !line.trim().is_empty()) {
        let is_item = line.starts_with(' ');
        if is_list && !is_item {
            text.push('\n');
        }
        is_list = is_item;
        let line = escaped(line.trim());
        text += &if is_item { format!("- {line}\n") } else { format!("{line}\n\n") };
    }
    if is_list { text + "\n" } else { text }
}

/// A text that Markdown shows as it is: names of hosts and GPUs may be anything.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for (at, letter) in text.char_indices() {
        match letter {
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' => escaped.extend(['\\', letter]),
            // Tags and entities; GitHub makes links of the others.
            '<' => escaped.push_str("&lt;"),
            // A quotation.
            '>' if at == 0 => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '@' => escaped.push_str("&#64;"),
            '#' => escaped.push_str("&#35;"),
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped.replace("://", "&#58;//")
}

#[cfg(test)]
mod tests {
    use pulldown_cmark::{Event, Options, Parser, html};

    use super::*;

    /// What a reader sees of a page: the cells of its tables, and everything else.
    fn shown(page: &Page) -> (Vec<String>, String) {
        let markdown = page.markdown();
        let mut cells = Vec::new();
        let mut others = String::new();
        let mut cell: Option<String> = None;
        for event in Parser::new_ext(&markdown, Options::ENABLE_TABLES) {
            match event {
                Event::Start(pulldown_cmark::Tag::TableCell) => cell = Some(String::new()),
                Event::End(pulldown_cmark::TagEnd::TableCell) => cells.extend(cell.take()),
                Event::Text(text) => cell.as_mut().unwrap_or(&mut others).push_str(&text),
                Event::Start(_) | Event::End(_) => {}
                other => panic!("{other:?} in {markdown}"),
            }
        }
        (cells, others)
    }

    const HOSTILE: &str =
        "a|b `c` *d* _e_ [f](http://g) <script>h</script> & @i #1 \\| ~~j~~ ![k](l)";

    #[test]
    fn markdown_shows_every_name_as_it_is() {
        let mut page = Page::default();
        page.title(format!("title {HOSTILE}"));
        let mut grid = Grid::new(["", HOSTILE]).words(&[HOSTILE]);
        grid.row(["1.00".to_owned(), format!("{HOSTILE}\r\n| x |")]);
        page.grid(grid);
        page.lines(&format!("said of {HOSTILE}:\n  item {HOSTILE}\n\n> last\n"));
        let (cells, others) = shown(&page);
        assert_eq!(cells, ["", HOSTILE, "1.00", &format!("{HOSTILE}  | x |")]);
        let expected = format!("title {HOSTILE}said of {HOSTILE}:item {HOSTILE}> last");
        assert_eq!(others, expected);
        let mut html = String::new();
        html::push_html(&mut html, Parser::new_ext(&page.markdown(), Options::ENABLE_TABLES));
        assert!(!html.contains("<script") && !html.contains("<a ") && !html.contains("<img"));
        assert!(
            html.contains("<h3>") && html.contains("<li>") && html.contains("text-align: right")
        );
    }

    #[test]
    fn the_same_page_is_text_for_a_terminal() {
        let mut page = Page::default();
        page.title("title");
        let mut grid = Grid::new(["size", "GB/s", "status"]).words(&["status"]);
        grid.row(["1 KiB", "2.000", "verified"].map(str::to_owned));
        page.grid(grid);
        page.lines("\nnote\n");
        assert_eq!(
            page.text_within(None),
            "title\n  size   GB/s  status\n 1 KiB  2.000  verified\n\nnote\n"
        );
        assert_eq!(
            page.markdown(),
            "### title\n\n| size | GB/s | status |\n| ---: | ---: | --- |\n| 1 KiB | 2.000 | verified |\n\nnote\n"
        );
    }

    #[test]
    fn a_table_is_no_wider_than_the_terminal() {
        let mut page = Page::default();
        let mut grid = Grid::new(["what", "empty"]).words(&["what", "empty"]);
        grid.row(["many words that are longer than a line", ""].map(str::to_owned));
        page.grid(grid.without_empty());
        let text = page.text_within(Some(20));
        assert!(text.lines().count() > 2 && text.lines().all(|line| line.len() <= 20), "{text}");
        assert!(!text.contains("empty") && page.text_within(None).lines().count() == 2);
    }
}
