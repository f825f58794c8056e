//! Every form of output: tables, matrices, Markdown, the report, pictures, progress.
//!
//! Decides nothing: other modules judge what it shows.

mod catalogue;
pub mod compare;
mod doctor;
mod matrix;
mod nccl_tests;
mod page;
mod picture;
pub(crate) mod progress;
mod prometheus;
pub mod report;
pub mod sweep;
mod table;
mod topology;
mod verdicts;
mod words;

pub use catalogue::{catalogue_entry_json, catalogue_entry_text, catalogue_json, catalogue_text};
pub use doctor::doctor_text;
pub use nccl_tests::{NcclTests, text as nccl_tests_text};
pub use page::Page;
pub use picture::picture;
pub use prometheus::text as prometheus_text;
pub use table::{print, tables};
pub use topology::topology_text;
pub use words::json;
