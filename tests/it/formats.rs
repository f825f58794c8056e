//! What g2g prints in the forms of others, read as those who know the forms read them.

use crate::common::{Rows, g2g, run};
use g2g::record::{Row, import};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

#[test]
fn collectives_in_the_form_of_nccl_tests_read_back_as_they_were_measured() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = format!(
        "nccl --simulate p4d.24xlarge --gpus 0,1 --operation all_reduce,broadcast,alltoall \
         --sizes 64,256K --samples 3 --quiet --format nccl-tests --output {}",
        output.display()
    );
    let printed = run(g2g(), &line);
    assert!(printed.status.success(), "{}", crate::common::text(&printed.stderr));
    let mut rows: Vec<Row> = Vec::new();
    let about = import::read(&printed.stdout, &mut |row| rows.push(row)).unwrap();
    assert_eq!((about.tool, about.left_out), ("nccl-tests", 0));
    assert_eq!(about.remarks(), [""; 0]);
    let measured = Rows::read(&output);
    assert_eq!(rows.len(), measured.len());
    // In nccl-tests' table a place out of it and one in it share a line.
    for row in &rows {
        let csv = g2g::record::csv_text(std::slice::from_ref(row));
        let read = Rows::parse(&csv);
        let same = (0..measured.len()).filter(|&at| {
            let columns = ["operation", "data_type", "reduction", "root", "in_place", "size_bytes"];
            columns.iter().all(|column| measured.cell(at, column) == read.cell(0, column))
        });
        let same: Vec<usize> = same.collect();
        assert_eq!(same.len(), 1, "{csv}");
        for column in ["communicator_ranks", "operations_per_group", "graph", "simulated", "status"]
        {
            assert_eq!(measured.cell(same[0], column), read.cell(0, column), "{column}");
        }
        for column in ["bandwidth_gb_s", "bandwidth_gb_s_bus"] {
            let ratio = read.number(0, column) / measured.number(same[0], column);
            // Half of the last digit that is printed, of the rate or of the time.
            assert!((ratio - 1.0).abs() < 2e-3, "{column} of {csv}: {ratio}");
        }
    }
}

/// The tables of a text in Markdown, each with what was said last before it.
fn tables(markdown: &str) -> Vec<(String, Vec<Vec<String>>)> {
    let mut tables: Vec<(String, Vec<Vec<String>>)> = Vec::new();
    let (mut said, mut text) = (String::new(), String::new());
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        match event {
            Event::Text(piece) => text.push_str(&piece),
            Event::End(TagEnd::Heading(_) | TagEnd::Paragraph) => said = std::mem::take(&mut text),
            Event::Start(Tag::Table(_)) => tables.push((said.clone(), Vec::new())),
            Event::Start(Tag::TableHead | Tag::TableRow) => {
                tables.last_mut().unwrap().1.push(Vec::new());
            }
            Event::Start(Tag::TableCell) => text.clear(),
            Event::End(TagEnd::TableCell) => {
                let row = tables.last_mut().unwrap().1.last_mut().unwrap();
                row.push(std::mem::take(&mut text));
            }
            _ => {}
        }
    }
    tables
}

#[test]
fn tables_in_markdown_have_the_numbers_of_the_rows() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = format!(
        "run --simulate p4d.24xlarge --gpus 0-2 --engine ce --operation copy --sizes 1M \
         --samples 3 --quiet --format markdown --details --output {}",
        output.display()
    );
    let printed = run(g2g(), &line);
    assert!(printed.status.success(), "{}", crate::common::text(&printed.stderr));
    let tables = tables(&crate::common::text(&printed.stdout));
    let rows = Rows::read(&output);
    let mut found = 0;
    for row in 0..rows.len() {
        let is_push = rows.cell(row, "transport") == "p2p" && rows.cell(row, "issuer") == "write";
        if !is_push || rows.cell(row, "pattern") != "one-way" {
            continue;
        }
        let title = "p2p copy ce, 1 MiB, GB/s written by the source [SIMULATED]";
        let (_, cells) = tables.iter().find(|(said, _)| said == title).unwrap();
        let gpu = |column| format!("GPU {}", rows.cell(row, column));
        let across = cells[0].iter().position(|cell| *cell == gpu("target_gpu")).unwrap();
        let line = cells.iter().find(|line| line[0] == gpu("source_gpu")).unwrap();
        assert_eq!(line[across], format!("{:.2}", rows.number(row, "bandwidth_gb_s")));
        found += 1;
    }
    assert_eq!(found, 6);
    // One for each kind, with a line for each row.
    let (_, cells) = tables.iter().find(|(said, _)| said == "local copy ce [SIMULATED]").unwrap();
    assert_eq!(cells[0][..2], ["between", "size"]);
    assert_eq!(cells[1][..2], ["within GPU 0", "1 MiB"]);
    assert!(cells[1].last().unwrap().starts_with("verified"), "{cells:?}");
}
