//! `run.csv`: the rows for spreadsheets and data frames.

use std::{fs::File, path::Path};

use super::{Error, Row, files::RecordFile};
use crate::plan::TransportKind;

/// The open file.
#[derive(Debug)]
pub(super) struct Csv {
    file: RecordFile,
}

impl Csv {
    pub(super) fn create(path: &Path) -> Result<Self, Error> {
        Ok(Self { file: RecordFile::create(path, text(&[]).as_bytes(), "")? })
    }

    /// Takes up the open `file` again, which has no row.
    pub(super) fn begin(path: &Path, file: File) -> Result<Self, Error> {
        let mut file = RecordFile::cut(path, file, 0)?;
        file.append(text(&[]).as_bytes())?;
        Ok(Self { file })
    }

    /// Takes up the open `file` again, of which `end` bytes stay.
    pub(super) fn resume(path: &Path, file: File, end: u64) -> Result<Self, Error> {
        Ok(Self { file: RecordFile::cut(path, file, end)? })
    }

    /// The file itself.
    pub(super) fn file(&self) -> &File {
        self.file.file()
    }

    pub(super) fn append(&mut self, row: &Row) -> Result<(), Error> {
        self.file.append(line(row).as_bytes())
    }
}

/// The line of a row.
pub(super) fn line(row: &Row) -> String {
    written(std::slice::from_ref(row), false)
}

/// The header and a line for each row. No cell holds a comma, a quote or a line break, so that
/// none needs quotes.
fn lines(rows: &[Row]) -> String {
    written(rows, true)
}

fn written(rows: &[Row], has_header: bool) -> String {
    let mut writer = ::csv::WriterBuilder::new().has_headers(has_header).from_writer(Vec::new());
    for row in rows {
        let plain = |text: &Option<String>| text.as_deref().map(without_quotes);
        let plain = Row {
            reason: without_quotes(&row.reason),
            nccl_env: plain(&row.nccl_env),
            source_host: plain(&row.source_host),
            target_host: plain(&row.target_host),
            provider: plain(&row.provider),
            protocol: plain(&row.protocol),
            fabric: plain(&row.fabric),
            source_domain: plain(&row.source_domain),
            target_domain: plain(&row.target_domain),
            source_nic: plain(&row.source_nic),
            target_nic: plain(&row.target_nic),
            algorithm: plain(&row.algorithm),
            algorithm_protocol: plain(&row.algorithm_protocol),
            plugin_protocol: plain(&row.plugin_protocol),
            path: plain(&row.path),
            path_reason: plain(&row.path_reason),
            expected_from: plain(&row.expected_from),
            expected_source: plain(&row.expected_source),
            verdict_reason: plain(&row.verdict_reason),
            ..row.clone()
        };
        writer.serialize(plain).expect("a row is flat, and memory takes every write");
    }
    let bytes = writer.into_inner().expect("memory takes every write");
    String::from_utf8(bytes).expect("every cell is text")
}

fn without_quotes(reason: &str) -> String {
    let plain = |letter| match letter {
        ',' => ';',
        '"' => '\'',
        letter if letter.is_control() => ' ',
        letter => letter,
    };
    reason.chars().map(plain).collect()
}

/// What `--format csv` prints: the same as the file.
pub fn text(rows: &[Row]) -> String {
    if rows.is_empty() {
        let example = Row::absent(0, TransportKind::Shm, "");
        return lines(&[example]).split_inclusive('\n').take(1).collect();
    }
    lines(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_the_published_one() {
        let golden = include_str!("../../tests/golden/header.csv");
        assert_eq!(text(&[]), golden);
    }

    #[test]
    fn every_column_is_explained_to_its_reader_in_order() {
        let guide = include_str!("../../results/README.md");
        let columns = guide.split("## Columns").nth(1).unwrap();
        let names = columns.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let explained: Vec<&str> = names.collect();
        assert_eq!(format!("{}\n", explained.join(",")), text(&[]));
    }

    #[test]
    fn no_cell_needs_quotes() {
        let text = lines(&[Row::absent(3, TransportKind::Nccl, "no \"libnccl\", here\nor there")]);
        assert!(!text.contains('"'), "{text}");
        let line = text.lines().nth(1).unwrap();
        assert!(line.starts_with("3,nccl,,"), "{line}");
        assert!(line.contains(",skipped,no 'libnccl'; here or there,,"), "{line}");
        assert_eq!(line.split(',').count(), text.lines().next().unwrap().split(',').count());
    }
}
