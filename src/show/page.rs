//! Titles, tables and lines, as text for a terminal or as Markdown for a comment or an issue.

use std::{env, io};

use anstyle::{AnsiColor, Style};
use comfy_table::{
    Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets,
};
use serde::Serialize;
use terminal_size::terminal_size_of;
use textwrap::{WordSeparator, WordSplitter, core::display_width};

use crate::stderr::visible;

/// How wide a page is where nothing tells the width of the terminal.
const WIDTH: usize = 80;

/// Columns between two cells.
const GAP: usize = 2;

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
    Sentence(Sentence),
}

/// What is to be thought of a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub(super) enum Tone {
    Good,
    Bad,
    Note,
}

/// A sentence that a person reads first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sentence {
    pub(super) tone: Tone,
    pub(super) text: String,
}

impl Sentence {
    /// Whether it is a problem.
    pub(super) fn is_bad(&self) -> bool {
        self.tone == Tone::Bad
    }
}

/// Cells under a head, numbers on the right and words on the left.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Grid {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
    #[serde(skip)]
    are_words: Vec<bool>,
    /// The heads of columns that a narrow terminal does without, in this order.
    #[serde(skip)]
    spare: Vec<String>,
}

/// A column of a table of `T`: its head, and its cell for each of them.
pub(super) type Column<T> = (&'static str, fn(T) -> String);

impl Grid {
    /// A head without rows; the columns hold numbers.
    pub(super) fn new(head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let head: Vec<String> = head.into_iter().map(Into::into).collect();
        Self { are_words: vec![false; head.len()], head, ..Self::default() }
    }

    /// A row for each item; the columns hold numbers.
    pub(super) fn of<T: Copy>(columns: &[Column<T>], items: impl IntoIterator<Item = T>) -> Self {
        let mut grid = Self::new(columns.iter().map(|(head, _)| *head));
        for item in items {
            grid.row(columns.iter().map(|(_, cell)| cell(item)));
        }
        grid
    }

    /// A row and a column for each label, with a cell for the indices of both; `corner` is the head
    /// of the labels.
    pub(super) fn square(
        corner: &str,
        labels: &[String],
        cell: impl Fn(usize, usize) -> String,
    ) -> Self {
        let mut grid = Self::new([corner].into_iter().chain(labels.iter().map(String::as_str)));
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

    /// The same, where a narrow terminal does without these columns, the first of them first.
    pub(super) fn spare(mut self, columns: &[&str]) -> Self {
        self.spare = columns.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// The same without empty columns.
    pub(super) fn without_empty(mut self) -> Self {
        for column in (0..self.head.len()).rev() {
            if self.rows.iter().all(|row| row[column].is_empty()) {
                self.remove(column);
            }
        }
        self
    }

    fn remove(&mut self, column: usize) {
        self.head.remove(column);
        self.are_words.remove(column);
        for row in &mut self.rows {
            row.remove(column);
        }
    }

    /// Appends a row.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// For a terminal of `width` columns. What is too wide loses its spare columns, then breaks
    /// its texts between words, then stands in several tables, each with the first column. Nothing
    /// breaks a number.
    fn text(&self, width: usize) -> String {
        let mut grid = self.clone();
        for name in &self.spare {
            if grid.least_width(false) <= width {
                break;
            }
            if let Some(column) = grid.head.iter().position(|head| head == name) {
                grid.remove(column);
            }
        }
        let parts = grid.parts(width);
        parts.iter().map(|part| part.table(width)).collect::<Vec<String>>().join("\n\n")
    }

    /// The widest text of a column, or if `is_broken` its widest word.
    fn column_width(&self, column: usize, is_broken: bool) -> usize {
        let cells = [&self.head].into_iter().chain(&self.rows).map(|row| row[column].as_str());
        let is_broken = is_broken && self.are_words[column];
        cells
            .flat_map(|cell| if is_broken { cell.split(' ').collect() } else { vec![cell] })
            .map(display_width)
            .max()
            .unwrap_or(0)
    }

    /// The columns of a terminal that it takes, if its texts are broken or not.
    fn least_width(&self, is_broken: bool) -> usize {
        (0..self.head.len()).map(|column| self.column_width(column, is_broken) + GAP).sum()
    }

    /// Tables of the first column and as many others as fit into `width`.
    fn parts(&self, width: usize) -> Vec<Self> {
        if self.head.len() < 2 || self.least_width(true) <= width {
            return vec![self.clone()];
        }
        let first = self.column_width(0, true) + GAP;
        let mut parts: Vec<Vec<usize>> = Vec::new();
        let mut left = 0;
        for column in 1..self.head.len() {
            let needed = self.column_width(column, true) + GAP;
            match parts.last_mut() {
                Some(part) if needed <= left => part.push(column),
                _ => {
                    parts.push(vec![0, column]);
                    left = width.saturating_sub(first);
                }
            }
            left = left.saturating_sub(needed);
        }
        let of = |columns: Vec<usize>| {
            let pick = |row: &Vec<String>| columns.iter().map(|&at| row[at].clone()).collect();
            Self {
                head: pick(&self.head),
                rows: self.rows.iter().map(pick).collect(),
                are_words: columns.iter().map(|&at| self.are_words[at]).collect(),
                spare: Vec::new(),
            }
        };
        parts.into_iter().map(of).collect()
    }

    fn table(&self, width: usize) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let is_broken = self.least_width(false) > width;
        if is_broken {
            let width = u16::try_from(width).unwrap_or(u16::MAX);
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        // A list of facts has no head.
        if self.head.iter().any(|name| !name.is_empty()) {
            table.set_header(self.head.iter().map(|cell| Cell::new(visible(cell))));
        }
        for row in &self.rows {
            table.add_row(row.iter().map(|cell| Cell::new(visible(cell))));
        }
        let least = |column| u16::try_from(self.column_width(column, true) + GAP);
        for (at, column) in table.column_iter_mut().enumerate() {
            if !self.are_words[at] {
                column.set_cell_alignment(CellAlignment::Right);
                column.set_constraint(ColumnConstraint::ContentWidth);
            } else if let Ok(least) = least(at) {
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
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
    /// A page of nothing but lines.
    pub fn of(lines: &str) -> Self {
        Self { parts: vec![Part::Lines(lines.to_owned())] }
    }

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

    /// Appends a sentence.
    pub(super) fn sentence(&mut self, sentence: Sentence) {
        self.parts.push(Part::Sentence(sentence));
    }

    /// For a terminal, as wide as it is, with what a terminal obeys to show styles.
    pub fn styled(&self) -> String {
        self.text_within(width(), true)
    }

    pub(super) fn text_within(&self, width: usize, has_styles: bool) -> String {
        let styled = |style: Style, text: String| match has_styles {
            true => text.lines().map(|line| format!("{style}{line}{style:#}\n")).collect(),
            false => text,
        };
        let part = |part: &Part| match part {
            Part::Title(title) => styled(Style::new().bold(), wrapped(title, width)),
            Part::Grid(grid) => format!("{}\n", grid.text(width)),
            Part::Lines(lines) => wrapped(lines, width),
            Part::Sentence(Sentence { tone, text }) => {
                let colour = match tone {
                    Tone::Good => Some(AnsiColor::Green.into()),
                    Tone::Bad => Some(AnsiColor::Red.into()),
                    Tone::Note => None,
                };
                styled(Style::new().fg_color(colour), wrapped(text, width))
            }
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
                Part::Sentence(Sentence { text: sentence, .. }) => text += &paragraphs(sentence),
            }
        }
        text.truncate(text.trim_end().len());
        text + "\n"
    }
}

/// How wide a page is: as `COLUMNS` says, which programs set that show what g2g prints, otherwise
/// as the terminal.
fn width() -> usize {
    let told = env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let found = || terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    told.filter(|&width| width > 0).or_else(found).unwrap_or(WIDTH)
}

/// Lines that are no longer than `width`, unless a word is. What is left of a line stands below it,
/// further right.
fn wrapped(lines: &str, width: usize) -> String {
    let mut text = String::new();
    for line in visible(lines).lines() {
        let words = line.trim_start();
        let (indent, words) = line.split_at(line.len() - words.len());
        let below = format!("{indent}  ");
        let options = textwrap::Options::new(width)
            .initial_indent(indent)
            .subsequent_indent(&below)
            .break_words(false)
            .word_separator(WordSeparator::AsciiSpace)
            .word_splitter(WordSplitter::NoHyphenation);
        text += &textwrap::fill(words, options);
        text.push('\n');
    }
    text
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
            page.text_within(80, false),
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
        let text = page.text_within(20, false);
        assert!(text.lines().count() > 2 && text.lines().all(|line| line.len() <= 20), "{text}");
        assert!(!text.contains("empty") && page.text_within(80, false).lines().count() == 2);
    }

    #[test]
    fn what_a_narrow_terminal_does_without_goes_in_its_order_and_no_number_breaks() {
        let mut grid = Grid::new(["what", "GB/s", "p50", "p99"]).words(&["what"]);
        grid.row(["a copy", "398.765", "185.85 µs", "190.01 µs"].map(str::to_owned));
        let grid = grid.spare(&["p99", "p50"]);
        let heads = |width: usize| -> Vec<String> {
            let text = grid.text(width);
            text.lines().next().unwrap().split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(heads(40), ["what", "GB/s", "p50", "p99"]);
        assert_eq!(heads(38), ["what", "GB/s", "p50"]);
        assert_eq!(heads(27), ["what", "GB/s"]);
        // Words break, then columns stand below each other.
        let text = grid.text(16);
        assert!(text.contains("398.765") && text.lines().count() == 3, "{text}");
        // A table of one column has nothing to stand below it.
        let mut alone = Grid::new(["number"]);
        alone.row(["123456789".to_owned()]);
        assert!(alone.text(5).contains("123456789"));
        let labels: Vec<String> = (0..16).map(|gpu| format!("GPU {gpu}")).collect();
        let square =
            Grid::square("from / to", &labels, |from, to| format!("{}.5", 100 * from + to));
        for width in [20, 60, 80, 120, 200] {
            let text = square.text(width);
            assert!(text.lines().all(|line| line.len() <= width), "{text}");
            for from in 0..16 {
                let all =
                    |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
                assert!((0..16).all(|to| all(&text).contains(&format!("{}.5", 100 * from + to))));
            }
        }
    }

    #[test]
    fn lines_break_between_words_and_go_on_further_right() {
        let mut page = Page::of("1234 5678 9012\n  - one two three\n");
        page.sentence(Sentence { tone: Tone::Bad, text: "bad".to_owned() });
        let expected = "1234 5678\n  9012\n  - one\n    two\n    three\nbad\n";
        assert_eq!(page.text_within(9, false), expected);
        assert_eq!(page.text_within(9, true), expected.replace("bad", "\u{1b}[31mbad\u{1b}[0m"));
        // What a terminal would obey is shown.
        assert_eq!(Page::of("a\u{1b}[31m").text_within(80, false), "a\\u001b[31m\n");
    }
}
