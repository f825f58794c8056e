//! The GPUs that `CUDA_VISIBLE_DEVICES` leaves to a process, as NVIDIA's CUDA programming guide
//! describes the variable.

use crate::{machine::Machine, nvml::uuid};

/// The GPUs of a host, in the order in which the process counts them, by their numbers among those of
/// all hosts. What is behind the first entry that is no GPU does not count; a GPU that is named twice
/// leaves none.
pub(super) fn visible(value: Option<&str>, machine: &Machine) -> Vec<u32> {
    let all = 0..u32::try_from(machine.gpus.len()).unwrap_or(0);
    let Some(value) = value else { return all.map(|gpu| machine.first_gpu + gpu).collect() };
    let find = |entry: &str| {
        let number = entry.parse().ok().filter(|number| all.contains(number));
        let by_uuid = |gpu: &u32| entry.len() > 4 && uuid(machine, *gpu).starts_with(entry);
        number.or_else(|| all.clone().find(by_uuid))
    };
    let mut visible = Vec::new();
    for place in value.split(',').map(|entry| find(entry.trim())).map_while(|found| found) {
        let gpu = machine.first_gpu + place;
        if visible.contains(&gpu) {
            return Vec::new();
        }
        visible.push(gpu);
    }
    visible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_counts_the_gpus_that_are_listed_up_to_the_first_that_is_none() {
        let machine = crate::machine::load("p5.48xlarge").unwrap();
        let of = |value: &str| visible(Some(value), &machine);
        assert_eq!(visible(None, &machine), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(of("3, 1"), [3, 1]);
        assert_eq!(of("2,9,1"), [2]);
        assert_eq!(of("-1"), [0; 0]);
        assert_eq!(of(""), [0; 0]);
        assert_eq!(of("1,1"), [0; 0]);
        assert_eq!(of(&format!("{},0", &uuid(&machine, 5)[..12])), [5, 0]);
        assert_eq!(of("GPU-"), [0; 0]);
    }
}
