//! Which variables are settings, so that their values may be written down.
//!
//! A prefix such as `NCCL_` is not enough: anybody may call a password so. The names are listed in
//! the catalogue.

use crate::plan::catalogue::Catalogue;

/// Whether `name` is a setting of NCCL, libfabric, AWS's plugin or CUDA, and nothing else.
pub fn is_setting(name: &str) -> bool {
    let catalogue = Catalogue::built_in();
    let is_on_list = |(beginning, names): (&String, &String)| {
        let rest = name.strip_prefix(beginning);
        rest.is_some_and(|rest| names.split_whitespace().any(|known| known == rest))
    };
    catalogue.lifetime(name).is_some() || catalogue.setting.iter().any(is_on_list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_makes_no_setting() {
        for name in [
            "NCCL_ALGO",
            "NCCL_AGG_CHANNEL_SIZE",
            "OFI_NCCL_PROTOCOL",
            "OFI_NCCL_CQ_SIZE",
            "FI_PROVIDER",
            "FI_EFA_TX_MIN_CREDITS",
            "CUDA_VISIBLE_DEVICES",
        ] {
            assert!(is_setting(name), "{name}");
        }
        for name in
            ["NCCL_PASSWORD", "NCCL_ALGO ", "FI_", "FI_EFA", "FI_PSM2_UUID", "CUDA_KEY", "PATH", ""]
        {
            assert!(!is_setting(name), "{name}");
        }
    }
}
