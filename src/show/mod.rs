//! Every form of output: tables, matrices, Markdown, the report, pictures, progress.
//!
//! Decides nothing: other modules judge what it shows.

mod answer;
mod catalogue;
pub mod compare;
mod doctor;
mod fitness;
mod matrix;
mod nccl_tests;
mod page;
mod picture;
pub(crate) mod progress;
mod prometheus;
pub mod report;
mod summary;
pub mod sweep;
mod table;
mod topology;
mod training;
mod verdicts;
mod words;

pub use answer::answer;
pub use catalogue::{catalogue_entry_json, catalogue_entry_page, catalogue_json, catalogue_page};
pub use doctor::doctor_page;
pub(crate) use fitness::FILE as CHECK;
pub use fitness::{check_page, unfit_lines};
pub use nccl_tests::{NcclTests, text as nccl_tests_text};
pub use page::Page;
pub use picture::picture;
pub use prometheus::{check_text as prometheus_check_text, text as prometheus_text};
pub use table::{print, print_page};
pub use topology::topology_page;
pub use training::training_page;
pub use words::json;
