//! `run.csv`: the rows for spreadsheets and data frames.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::Path,
};

use csv::{ErrorKind, Position, StringRecord, WriterBuilder};

use super::{
    COLUMNS, Error, Row,
    columns::{Cell, Column},
};

/// The line of a row.
pub(super) fn line(row: &Row) -> String {
    lines(std::slice::from_ref(row))
}

/// What `--format csv` prints: the same as the file.
pub fn text(rows: &[Row]) -> String {
    let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    format!("{}\n{}", names.join(","), lines(rows))
}

fn lines(rows: &[Row]) -> String {
    let mut writer = WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    for row in rows {
        let cells: Vec<Cell<'_>> = COLUMNS.iter().map(|column| (column.cell)(row)).collect();
        writer.serialize(cells).expect("a cell is flat, and memory takes every write");
    }
    let bytes = writer.into_inner().expect("memory takes every write");
    String::from_utf8(bytes).expect("every cell is text")
}

/// Reads a file that may be written to at the same time, or was cut by a kill: text after its last
/// line break is no row.
pub(super) fn read(path: &Path) -> Result<Vec<Row>, Error> {
    let read = |source| Error::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(read)?;
    let text = whole_lines(file).map_err(read)?;
    rows(text).map_err(|reason| Error::Content { path: path.to_owned(), reason })
}

/// The rows of the text of a run.csv. Columns that an older version did not write are empty.
fn rows(text: impl Read) -> Result<Vec<Row>, String> {
    let mut reader = ::csv::Reader::from_reader(text);
    let header = reader.headers().map_err(|err| told(&err, None))?.clone();
    let is_missing = |column: &&Column| !header.iter().any(|name| name == column.name);
    if let Some(column) = COLUMNS.iter().filter(|column| column.is_required).find(is_missing) {
        return Err(format!("its first line has no column {}", column.name));
    }
    let mut rows = Vec::new();
    let mut record = StringRecord::new();
    while reader.read_record(&mut record).map_err(|err| told(&err, None))? {
        let read = record.deserialize(Some(&header));
        let row: Row = read.map_err(|err| told(&err, Some((&header, &record))))?;
        let is_endless =
            |column: &&Column| matches!((column.cell)(&row), Cell::Number(n) if !n.is_finite());
        if let Some(column) = COLUMNS.iter().find(is_endless) {
            let line = record.position().map_or(0, Position::line);
            let cell = (column.cell)(&row);
            return Err(format!("line {line} has \"{cell}\" for {}: no number", column.name));
        }
        rows.push(row);
    }
    Ok(rows)
}

/// A file up to its last line break.
fn whole_lines(file: File) -> io::Result<impl Read> {
    let mut end = file.metadata()?.len();
    let mut piece = [0; 4096];
    while end > 0 {
        let start = end.saturating_sub(piece.len() as u64);
        let piece = &mut piece[..usize::try_from(end - start).unwrap_or_default()];
        file.read_exact_at(piece, start)?;
        if let Some(last) = piece.iter().rposition(|byte| *byte == b'\n') {
            end = start + last as u64 + 1;
            break;
        }
        end = start;
    }
    Ok(file.take(end))
}

/// What is wrong with a line, in one sentence.
fn told(err: &::csv::Error, of: Option<(&StringRecord, &StringRecord)>) -> String {
    let line = err.position().map_or(0, Position::line);
    match (err.kind(), of) {
        (ErrorKind::UnequalLengths { expected_len, len, .. }, _) => {
            format!("line {line} has {len} cells, and the first line {expected_len}")
        }
        (ErrorKind::Utf8 { .. }, _) => format!("line {line} is no text"),
        (ErrorKind::Deserialize { err, .. }, Some((header, record))) => {
            let at = err.field().and_then(|field| usize::try_from(field).ok());
            let cell = at.and_then(|at| Some((record.get(at)?, header.get(at)?)));
            let cell = cell.map(|(cell, name)| format!(" has {cell:?} for {name}"));
            format!("line {line}{}: {}", cell.unwrap_or_default(), err.kind())
        }
        _ => err.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::TransportKind, units::Bytes};

    fn row(case: usize, size: u64, gb_s: f64) -> Row {
        Row {
            bandwidth_gb_s: Some(gb_s),
            size_bytes: Some(Bytes::new(size)),
            ..Row::absent(case, TransportKind::P2p, "because")
        }
    }

    #[test]
    fn rows_are_what_they_were() {
        let written = [row(1, 64, 0.1), row(2, 128, 1e-9), row(3, 64, 450.25)];
        assert_eq!(rows(text(&written).as_bytes()).unwrap(), written);
        // An older version has not all columns, and a newer one has more.
        let older = "more,case,transport,status,simulated,reason,flags\n1,7,shm,failed,true,why,\n";
        let [older] = &rows(older.as_bytes()).unwrap()[..] else { panic!("one row") };
        let expected = Row { simulated: true, ..Row::absent(7, TransportKind::Shm, "why") };
        assert_eq!(*older, Row { status: crate::record::Status::Failed, ..expected });
    }

    #[test]
    fn no_text_needs_quotes_whatever_its_column() {
        let hostile = "no \"libnccl\", here\nor\rthere";
        let empty = Row::absent(3, TransportKind::Nccl, "");
        let mut json = serde_json::to_value(&empty).unwrap();
        // What takes any text.
        let mut texts = 0;
        for column in COLUMNS {
            let before = json[column.name].take();
            json[column.name] = hostile.into();
            match serde_json::from_value::<Row>(json.clone()) {
                Ok(_) => texts += 1,
                Err(_) => json[column.name] = before,
            }
        }
        assert!(texts > 10, "{texts}");
        let row: Row = serde_json::from_value(json).unwrap();
        let text = text(&[row]);
        assert!(!text.contains('"') && !text.contains('\r'), "{text}");
        assert_eq!(text.matches("no 'libnccl'; here or there").count(), texts);
        let [header, line] = &text.lines().collect::<Vec<&str>>()[..] else { panic!("{text}") };
        assert_eq!(line.split(',').count(), header.split(',').count());
        assert!(rows(text.as_bytes()).is_ok());
    }

    #[test]
    fn a_line_that_a_kill_has_cut_is_no_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.csv");
        let text = text(&[row(1, 64, 0.1), row(2, 128, 0.2)]);
        let last = text.trim_end().rfind('\n').unwrap() + 1;
        for end in last..text.len() {
            std::fs::write(&path, &text[..end]).unwrap();
            assert_eq!(read(&path).unwrap().len(), 1, "{end} bytes");
        }
        std::fs::write(&path, &text).unwrap();
        assert_eq!(read(&path).unwrap().len(), 2);
    }

    #[test]
    fn what_is_no_run_is_refused_with_the_line() {
        let header = text(&[]);
        let refused = |text: &[u8]| rows(text).unwrap_err();
        assert_eq!(refused(b""), "its first line has no column case");
        assert_eq!(refused(b"name,value\na,1\n"), "its first line has no column case");
        let short = format!("{header}1,p2p\n");
        let count = header.split(',').count();
        let sentence = format!("line 2 has 2 cells, and the first line {count}");
        assert_eq!(refused(short.as_bytes()), sentence);
        let good = text(&[row(1, 64, 0.5)]);
        let with = |from: &str, to: &str| refused(good.replacen(from, to, 1).as_bytes());
        assert_eq!(
            with("\n1,", "\none,"),
            "line 2 has \"one\" for case: invalid digit found in string"
        );
        assert_eq!(with(",0.5,", ",inf,"), "line 2 has \"inf\" for bandwidth_gb_s: no number");
        let other = with(",p2p,", ",p2q,");
        assert!(other.starts_with("line 2: unknown variant `p2q`"), "{other}");
        let binary = [good.trim_end().as_bytes(), b"\xff\n"].concat();
        assert_eq!(refused(&binary), "line 2 is no text");
    }
}
