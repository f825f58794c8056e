//! Results of other programs.

use g2g::record::{Row, csv_text, import};

/// They are read as rows: no panic, nothing that a terminal would obey, rows that are lines of
/// run.csv.
pub(crate) fn take(results: &[u8]) -> bool {
    let mut rows: Vec<Row> = Vec::new();
    let is_plain = |text: &str| text.chars().all(|letter| !letter.is_control());
    match import::read(results, &mut |row| rows.push(row)) {
        Ok(imported) => {
            assert_eq!(imported.rows, rows.len());
            assert!(imported.remarks().iter().all(|remark| is_plain(remark)));
            assert!(imported.version.as_deref().is_none_or(is_plain));
        }
        Err(err) => {
            assert!(rows.is_empty() && is_plain(&err.to_string()));
        }
    }
    for (number, row) in rows.iter().enumerate() {
        assert_eq!(row.case, number + 1);
        let rates = [row.bandwidth_gb_s, row.bandwidth_gb_s_total, row.bandwidth_gb_s_bus];
        assert!(rates.into_iter().flatten().all(|rate| rate > 0.0 && rate.is_finite()));
    }
    let text = csv_text(&rows);
    assert_eq!(text.lines().count(), rows.len() + 1);
    assert!(text.lines().all(is_plain) && !text.contains('"'));
    !rows.is_empty()
}
