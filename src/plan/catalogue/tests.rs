//! The catalogue that is built in, and what a user adds to it.

use std::slice::from_ref;

use super::*;

#[test]
fn instances_are_what_the_catalogue_says() {
    let p4d = Instance::named("p4d.24xlarge").unwrap();
    assert_eq!((p4d.gpu_count.get(), p4d.efa_interfaces), (8, Some(4)));
    assert!(p4d.has_nvlink() && !p4d.lacks_p2p() && p4d.is_ampere());
    assert_eq!(p4d.has_nvls(), Some(false));
    assert!(!Instance::named("p5.48xlarge").unwrap().is_ampere());
    assert_eq!(Instance::named("p5.48xlarge").unwrap().has_nvls(), Some(true));
    assert!(Instance::named("g6.48xlarge").unwrap().lacks_p2p());
    assert!(Instance::named("p4d.48xlarge").is_none());
}

/// The names of sources of each entry, with the entry's name.
fn sources(catalogue: &Catalogue) -> Vec<(String, &[String])> {
    let Catalogue { gpu, nvlink, pcie, host_link, instance, collective, .. } = catalogue;
    let mut found: Vec<(String, &[String])> = Vec::new();
    found.extend(gpu.iter().map(|(key, gpu)| (format!("gpu.{key}"), &gpu.src[..])));
    found.extend(nvlink.iter().map(|(key, link)| (format!("nvlink.{key}"), &link.src[..])));
    found.push(("pcie".to_owned(), &pcie.src));
    let generations = (1..=5).filter_map(|n| Some((format!("pcie.gen{n}"), pcie.generation(n)?)));
    found.extend(generations.map(|(key, generation)| (key, &generation.src[..])));
    found.extend(host_link.iter().map(|(key, link)| (format!("host_link.{key}"), &link.src[..])));
    found.extend(instance.iter().map(|(key, known)| (format!("instance.{key}"), &known.src[..])));
    let attainable = catalogue.attainable.iter();
    found.extend(attainable.map(|(key, way)| (format!("attainable.{key}"), &way.src[..])));
    let published = catalogue.published.iter();
    found.extend(published.map(|figure| (figure.machine.clone(), from_ref(&figure.src))));
    let references = collective.reference.iter();
    found.extend(references.map(|(key, known)| (format!("collective.{key}"), &known.src[..])));
    found
}

#[test]
fn every_entry_names_sources_that_are_explained() {
    let catalogue = Catalogue::built_in();
    let tables = [("dmi", &catalogue.dmi), ("collective.bound", &catalogue.collective.bound)];
    let of_tables = tables.map(|(entry, table)| -> (String, Vec<String>) {
        (entry.to_owned(), table["src"].clone().try_into().unwrap())
    });
    let mut sources = sources(catalogue);
    sources.extend(of_tables.iter().map(|(entry, names)| (entry.clone(), &names[..])));
    assert!(sources.len() > 90, "{}", sources.len());
    for (entry, names) in sources {
        assert!(!names.is_empty(), "{entry}");
        for name in names {
            assert!(catalogue.source.contains_key(name), "{entry}: {name}");
        }
    }
}

#[test]
fn what_the_built_in_file_says_is_all_read() {
    let text = include_str!("../catalogue.toml");
    for (from, to) in [
        ("schema = 1\n", "schema = 1\nshema = 1\n"),
        ("[gpu.h100]\n", "[gpu.h100]\nspeed = 1\n"),
        ("[nvlink.gen4]\n", "[nvlink.gen4]\nspeed = 1\n"),
        ("[pcie.gen4]\n", "[pcie.gen4]\nspeed = 1\n"),
        ("[pcie]\n", "[pcie]\nspeed = 1\n"),
        ("[host_link.nvlink_c2c]\n", "[host_link.nvlink_c2c]\nspeed = 1\n"),
        ("[instance.\"p5.48xlarge\"]\n", "[instance.\"p5.48xlarge\"]\nspeed = 1\n"),
        ("[collective.reference.b200_8]\n", "[collective.reference.b200_8]\nspeed = 1\n"),
    ] {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        let read = toml::from_str::<Catalogue>(&text.replace(from, to));
        assert!(read.unwrap_err().to_string().contains("unknown field"), "{from}");
    }
    // What no code reads is told as it stands there.
    let more = text.replace("[dmi]\n", "[dmi]\nspeed = 1\n");
    let told = serde_json::to_value(toml::from_str::<Catalogue>(&more).unwrap()).unwrap();
    assert_eq!(told["dmi"]["speed"], 1);
}

#[test]
fn published_figures_are_within_what_transfers_reach_or_say_why_not() {
    let catalogue = Catalogue::built_in();
    for figure in &catalogue.published {
        let way = &catalogue.attainable[&figure.attainable];
        assert!(way.low < way.usual && way.usual < way.high, "{}", way.what);
        let (least, most) =
            (figure.least.get() / figure.raw.get(), figure.most.get() / figure.raw.get());
        let is_inside = way.low.get() <= least && least <= most && most <= way.high.get();
        let told = format!("{}, {}: {least:.3} to {most:.3}", figure.attainable, figure.machine);
        assert_eq!(is_inside, figure.outside.is_none(), "{told}");
    }
    // What has no figure says that it is assumed, or is what NCCL plans with.
    for (key, way) in &catalogue.attainable {
        let is_published = catalogue.published.iter().any(|figure| figure.attainable == *key);
        assert!(is_published || way.src.iter().any(|name| name == "assumed"), "{key}");
    }
}

/// Whether two numbers are the same up to the last digit that is written.
fn is_near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 0.006_f64.max(expected * 1e-4)
}

#[test]
fn what_an_instance_repeats_of_its_gpu_agrees_with_it() {
    let catalogue = Catalogue::built_in();
    for (name, instance) in &catalogue.instance {
        let gpu = catalogue.gpu_of(instance).unwrap_or_else(|| panic!("{name}"));
        if let Some(rate) = instance.nvlink_gbs_per_gpu_per_dir {
            let links = f64::from(instance.nvlink_links_per_gpu.unwrap());
            let per_link = gpu.nvlink_gbs_per_link_per_dir.unwrap().get();
            assert!(is_near(rate.get(), links * per_link), "{name}");
            assert_eq!(instance.nvlink_gen, gpu.nvlink_gen, "{name}");
            assert!(instance.nvlink_links_per_gpu <= gpu.nvlink_links, "{name}");
        }
        let (total, share) = (instance.efa_total_gbps, instance.efa_gbps_per_gpu);
        if let (Some(total), Some(share)) = (total, share) {
            let gpus = f64::from(instance.gpu_count.get());
            assert!(is_near(total.get(), gpus * share.get()), "{name}");
        }
        assert_eq!(instance.family.as_deref(), name.split('.').next(), "{name}");
        assert_eq!(
            instance.efa == Some(false),
            instance.efa_interfaces.is_none() && instance.efa != Some(true),
            "{name}"
        );
    }
}

#[test]
fn rates_that_follow_from_others_are_right() {
    let catalogue = Catalogue::built_in();
    for (key, link) in &catalogue.nvlink {
        let links = f64::from(link.max_links_per_gpu.get());
        let raw = link.raw_gbs_per_link_per_dir.get();
        let model = link.nccl_model_gbs_per_link_per_dir.get();
        assert!(is_near(link.raw_gbs_per_gpu_per_dir.get(), links * raw), "{key}");
        assert!(is_near(link.nccl_model_gbs_per_gpu_per_dir.get(), links * model), "{key}");
    }
    let overhead = catalogue.pcie.tlp_overhead_bytes_4dw.get();
    for number in 1..=5 {
        let pcie = catalogue.pcie.generation(number).unwrap();
        // Two of ten bits are the code's in generations 1 and 2, two of 130 in the others.
        let code = if number < 3 { 0.8 } else { 128.0 / 130.0 };
        let lane = pcie.gt_per_s.get() * code / 8.0;
        assert!((pcie.raw_gbs_per_lane_per_dir.get() - lane).abs() < 1e-4, "{number}");
        let data = |lanes: f64, packet: f64| lanes * lane * packet / (packet + overhead);
        for (lanes, [raw, of_256, of_128, of_64]) in [
            (4.0, [pcie.x4_raw_gbs, pcie.x4_mps256_gbs, pcie.x4_mps128_gbs, pcie.x4_mps64_gbs]),
            (8.0, [pcie.x8_raw_gbs, pcie.x8_mps256_gbs, pcie.x8_mps128_gbs, pcie.x8_mps64_gbs]),
            (
                16.0,
                [pcie.x16_raw_gbs, pcie.x16_mps256_gbs, pcie.x16_mps128_gbs, pcie.x16_mps64_gbs],
            ),
        ] {
            assert!(is_near(raw.get(), lanes * lane), "{number} x{lanes}");
            assert!(is_near(of_256.get(), data(lanes, 256.0)), "{number} x{lanes}");
            assert!(is_near(of_128.get(), data(lanes, 128.0)), "{number} x{lanes}");
            assert!(is_near(of_64.get(), data(lanes, 64.0)), "{number} x{lanes}");
        }
    }
}

#[test]
fn the_factors_of_bus_bandwidth_are_those_that_rows_have() {
    use crate::plan::Collective;
    use strum::VariantArray as _;
    let factors = &Catalogue::built_in().collective.busbw_factor;
    for collective in Collective::VARIANTS {
        let by_formula = match factors[&collective.to_string()].as_str() {
            "2*(n-1)/n" => 1.75,
            "(n-1)/n" => 0.875,
            "1" => 1.0,
            other => panic!("{other}"),
        };
        assert_eq!(collective.busbw_factor(8), Some(by_formula), "{collective}");
    }
}

#[test]
fn gpus_are_known_by_the_names_that_drivers_give_them() {
    let catalogue = Catalogue::built_in();
    for (name, key) in [
        ("NVIDIA A100-SXM4-40GB", Some("a100_40")),
        ("A100-SXM4-40GB", Some("a100_40")),
        ("Tesla V100-SXM2-32GB", Some("v100")),
        ("NVIDIA H100 80GB HBM3", Some("h100")),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", None),
        ("NVIDIA H100 PCIe", None),
        ("", None),
    ] {
        assert_eq!(catalogue.key_of_driver_name(name), key, "{name}");
    }
    let named = catalogue.gpu.values().flat_map(|gpu| &gpu.driver_names);
    let names: BTreeSet<&String> = named.clone().collect();
    assert_eq!(names.len(), named.count(), "a name stands for two GPUs");
    assert!(catalogue.gpu.values().all(|gpu| !gpu.driver_names.is_empty()));
}

const MINE: &str = "schema = 1\n\n[gpu.mine]\nname = \"Mine\"\nmem_bw_gbs = 1000\n\n\
                    [instance.\"my machine\"]\ngpu = \"mine\"\ngpu_count = 2\n\n\
                    [instance.\"p4d.24xlarge\"]\ngpu = \"a100_80\"\ngpu_count = 4\n";

#[test]
fn a_users_entries_are_added_and_marked_and_take_the_place_of_others() {
    let whole = Catalogue::built_in().with(MINE).unwrap();
    assert_eq!(whole.instance.len(), Catalogue::built_in().instance.len() + 1);
    assert_eq!(whole.gpu_of(&whole.instance["my machine"]).unwrap().name, "Mine");
    assert_eq!(whole.instance["p4d.24xlarge"].gpu_count.get(), 4);
    assert!(["mine", "my machine", "p4d.24xlarge"].iter().all(|name| whole.is_added(name)));
    assert!(!whole.is_added("p5.48xlarge"));
    assert!(!Catalogue::built_in().is_added("p4d.24xlarge"));
}

#[test]
fn what_is_wrong_with_a_users_file_is_said_with_its_line_and_key() {
    let begin = "schema = 1\n[instance.mine]\n";
    for (text, problem) in [
        ("", "line 1: missing field `schema`"),
        ("schema = 2\n", "line 1, `schema`: 2 is not 1, the only one there is"),
        ("schema = 1\n[instanse.a]\n", "line 2: unknown field `instanse`"),
        (&format!("{begin}gpu_count = 1\n"), "line 2, `instance.mine`: missing field `gpu`"),
        (
            &format!("{begin}gpu = \"h100\"\ngpu_count = 0\n"),
            "line 4, `instance.mine.gpu_count`: invalid value",
        ),
        (
            &format!("{begin}gpu = \"h100\"\ngpu_count = 8\nvcpu = 8\n"),
            "line 5, `instance.mine`: unknown field `vcpu`; the nearest that there is is `vcpus`",
        ),
        (
            &format!("{begin}gpu = \"h100\"\ngpu_count = 8\nnetwork_gbps = nan\n"),
            "line 5, `instance.mine.network_gbps`: NaN is not a number above 0",
        ),
        (
            &format!("{begin}gpu = \"h10\"\ngpu_count = 8\n"),
            "line 2, `instance.mine.gpu`: there is no GPU `h10`: describe it as [gpu.h10], or \
             name one that is known, such as h100",
        ),
        (
            &format!("{begin}gpu = \"h100\"\ngpu_count = 4000000000\n"),
            "line 4, `instance.mine.gpu_count`: 4000000000 is more than 1024",
        ),
        (
            &format!("{begin}gpu = \"h100\"\ngpu_count = 1024\nnuma_nodes = 1025\n"),
            "line 5, `instance.mine.numa_nodes`: 1025 is more than 1024",
        ),
        (
            &format!("{begin}gpu = \"h100\"\ngpu_count = 8\nefa_interfaces = 70000\n"),
            "line 5, `instance.mine.efa_interfaces`: 70000 is more than 1024",
        ),
        ("schema = 1\n[gpu.a\n", "line 2: "),
    ] {
        let bad = Catalogue::built_in().with(text).unwrap_err().to_string();
        assert!(bad.starts_with(problem), "{text:?}: {bad}");
        assert!(!bad.contains('\n'), "{bad}");
    }
}

#[test]
fn the_nearest_names_are_offered() {
    let catalogue = Catalogue::built_in();
    assert_eq!(catalogue.nearest("p5.48xlarg")[0], "p5.48xlarge");
    assert_eq!(catalogue.nearest("P4D.24XLARGE")[0], "p4d.24xlarge");
    assert_eq!(catalogue.nearest("h10")[0], "h100");
    assert_eq!(catalogue.nearest("p6e")[0], "p6e-gb200.36xlarge");
    assert_eq!(catalogue.nearest("").len(), NAMES_OFFERED);
}
