//! `g2g topo`: what it says of machines whose truth is known, and of machines whose files say
//! nonsense.

use std::{collections::BTreeMap, fs, sync::LazyLock};

use crate::common::{g2g, run, simulation::simulated_system, text};
use g2g::{
    machine::{survey, system::System},
    record,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use roxmltree::Document;
use serde_json::{Value, json};

/// What `g2g topo` says of a machine; fails if it does not end well.
fn topo(line: &str) -> String {
    let output = run(g2g(), &format!("topo {line}"));
    assert_eq!(output.status.code(), Some(0), "{line}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn survey_of(machine: &str) -> Value {
    serde_json::from_str(&topo(&format!("--format json --simulate {machine}"))).unwrap()
}

/// What `g2g topo` says of a machine file.
fn topo_of_file(machine: &str, format: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("machine.toml");
    fs::write(&file, machine).unwrap();
    topo(&format!("--format {format} --simulate {}", file.display()))
}

/// All texts of a picture; fails if it is no XML or needs anything from outside.
fn texts(svg: &str) -> Vec<String> {
    let document = Document::parse(svg).unwrap_or_else(|err| panic!("{err}: {svg}"));
    assert_eq!(document.root_element().tag_name().name(), "svg");
    for node in document.descendants().filter(roxmltree::Node::is_element) {
        let outside = node.attributes().find(|attribute| {
            attribute.name().contains("href") || attribute.value().contains("url(")
        });
        assert!(outside.is_none() && node.tag_name().name() != "script", "{outside:?}");
    }
    let texts = document.descendants().filter(roxmltree::Node::is_text);
    let texts = texts.filter_map(|node| node.text()).map(str::trim);
    texts.filter(|text| !text.is_empty()).map(str::to_owned).collect()
}

#[test]
fn the_matrix_is_that_of_nvidia_smi_on_the_real_machine() {
    for machine in ["g6e.12xlarge", "p4d.24xlarge", "p5.48xlarge"] {
        let fixture = format!("tests/fixtures/nvidia-smi-topo-{machine}.txt");
        let real = fs::read_to_string(fixture).unwrap();
        let told = topo(&format!("--simulate {machine}"));
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let mut lines = told.lines().skip_while(|line| !line.contains("CPU Affinity"));
        for line in real.lines().filter(|line| line.contains("GPU")) {
            assert_eq!(words(lines.next().unwrap()), words(line), "{machine}");
        }
    }
}

#[test]
fn the_parts_of_an_instance_and_what_is_near_to_what_are_told() {
    let survey = survey_of("p5.48xlarge");
    assert_eq!(survey["product"], "p5.48xlarge");
    assert_eq!(survey["missing"], json!([]));
    assert_eq!(survey["switches"].as_array().unwrap().len(), 4);
    let nics = survey["nics"].as_array().unwrap();
    let efa: Vec<&Value> = nics.iter().filter(|nic| nic["kind"] == "efa").collect();
    assert_eq!(efa.len(), 32);
    let mut of_gpus: BTreeMap<u64, usize> = BTreeMap::new();
    for nic in efa {
        let nearest = nic["nearest_gpus"].as_array().unwrap();
        assert_eq!(nearest.len(), 1, "{nic}");
        assert_eq!(nic["ways"][usize::try_from(nearest[0].as_u64().unwrap()).unwrap()], "PIX");
        *of_gpus.entry(nearest[0].as_u64().unwrap()).or_default() += 1;
    }
    assert_eq!(of_gpus, (0..8).map(|gpu| (gpu, 4)).collect());
    for gpu in survey["gpus"].as_array().unwrap() {
        assert_eq!(gpu["nvml"]["nvlinks"].as_array().unwrap().len(), 18);
        assert_eq!(gpu["nvml"]["nvlink_gb_s"], 25.0);
        assert_eq!(gpu["nvml"]["fabric"]["state"], "completed");
        assert_eq!(gpu["pci"]["link_max"], json!({"generation": 5, "lanes": 16}));
    }
    let pair = |gpu: u64, peer: u64| {
        let pairs = survey["pairs"].as_array().unwrap();
        pairs.iter().find(|pair| pair["gpu"] == gpu && pair["peer"] == peer).unwrap()
    };
    assert_eq!((&pair(0, 3)["way"], &pair(0, 3)["nvlinks"]), (&json!("NODE"), &json!(18)));
    assert_eq!(pair(3, 4)["way"], "SYS");
}

#[test]
fn what_the_kernel_shows_of_two_gpus_is_what_nvml_says() {
    for machine in ["p4d.24xlarge", "g5.48xlarge", "p6e-gb200.36xlarge", "p2.16xlarge"] {
        for pair in survey_of(machine)["pairs"].as_array().unwrap() {
            let said = match pair["nvml"]["common_ancestor"].as_str().unwrap() {
                "single-switch" => "PIX",
                "multiple-switches" => "PXB",
                "host-bridge" => "PHB",
                "numa-node" => "NODE",
                "system" => "SYS",
                other => panic!("{other}"),
            };
            assert_eq!(pair["way"], said, "{machine}: {pair}");
        }
    }
}

#[test]
fn links_that_are_down_and_narrow_are_shown() {
    let machine = "schema = 1\nfrom = \"p4d.24xlarge\"\n[[gpu]]\nordinals = [2]\n\
                   nvlinks_down = [3, 7]\npcie_lanes = 8\n";
    let table = topo_of_file(machine, "table");
    let lines = table.lines().skip_while(|line| !line.contains("NVLinks up"));
    let line = lines.take(9).find(|line| line.trim_start().starts_with("2 ")).unwrap();
    assert!(
        line.contains("Gen3 x8") && line.contains("10 of 12") && line.contains(" 3 7 "),
        "{line}"
    );
    assert!(line.contains("10xNVSwitch"), "{line}");
    let texts = texts(&topo_of_file(machine, "svg"));
    let count = |wanted: &str| texts.iter().filter(|text| text.contains(wanted)).count();
    assert_eq!([count("x8 of x16"), count("10 of 12 NVLink3 up")], [1, 1], "{texts:?}");
    assert_eq!([count("12 of 12 NVLink3 up"), count("250 GB/s"), count("300 GB/s")], [7, 1, 7]);
}

#[test]
fn every_instance_has_a_picture_with_all_of_its_parts() {
    for machine in
        ["p4d.24xlarge", "p5.48xlarge", "g6e.12xlarge", "p6e-gb200.36xlarge", "p3dn.24xlarge"]
    {
        let survey = survey_of(machine);
        let texts = texts(&topo(&format!("--format svg --simulate {machine}")));
        let shows = |wanted: &str| texts.iter().any(|text| text == wanted);
        for gpu in survey["gpus"].as_array().unwrap() {
            assert!(shows(&format!("GPU {}", gpu["gpu"])), "{machine}");
            assert!(shows(gpu["pci_bus_id"].as_str().unwrap()), "{machine}");
        }
        for nic in survey["nics"].as_array().unwrap() {
            assert!(shows(nic["name"].as_str().unwrap()), "{machine}: {nic}");
        }
        assert!(texts[0].contains(machine) && texts[0].contains("[SIMULATED]"), "{texts:?}");
    }
}

#[test]
fn direct_nvlinks_are_drawn_between_their_gpus() {
    let survey = survey_of("p3dn.24xlarge");
    let texts = texts(&topo("--format svg --simulate p3dn.24xlarge"));
    let pairs = survey["pairs"].as_array().unwrap();
    let mut drawn = 0;
    for pair in pairs.iter().filter(|pair| pair["gpu"].as_u64() < pair["peer"].as_u64()) {
        let (gpu, peer, links) = (&pair["gpu"], &pair["peer"], pair["nvlinks"].as_u64().unwrap());
        let name = format!("GPU {gpu} and GPU {peer}: {links} NVLinks");
        assert_eq!(texts.contains(&name), links > 0, "{name}");
        drawn += u64::from(links > 0);
    }
    assert_eq!(drawn, 16, "each of 8 GPUs has 4 neighbours");
}

#[test]
fn links_to_a_cpu_on_the_same_module_are_shown() {
    let survey = survey_of("p6e-gb200.36xlarge");
    let c2c = &survey["gpus"][0]["nvml"]["c2c"];
    assert_eq!(c2c["active"], c2c["links"]);
    let (links, gb_s) = (c2c["links"].as_u64().unwrap(), c2c["gb_s"].as_f64().unwrap());
    assert!(links > 0 && (200.0..450.0).contains(&gb_s), "{c2c}");
    let texts = texts(&topo("--format svg --simulate p6e-gb200.36xlarge"));
    let name = format!("NVLink-C2C, {links} of {links} up, {gb_s:.0} GB/s");
    assert_eq!(texts.iter().filter(|text| **text == name).count(), 4, "{name}: {texts:?}");
    assert_eq!(survey_of("p5.48xlarge")["gpus"][0]["nvml"]["c2c"], Value::Null);
}

#[test]
fn a_defect_of_the_host_is_shown_by_the_whole_program() {
    let machine = "schema = 1\nfrom = \"p4d.24xlarge\"\n\
        [[host.file]]\npath = \"/sys/class/infiniband/rdmap65s0/device\"\nlink = \"/sys/gone\"\n\
        [[host.file]]\npath = \"/sys/devices/system/node/node1/cpulist\"\ntext = \"all\"\n\
        [[nic]]\nindices = [2]\nstate = \"down\"\n";
    let survey: Value = serde_json::from_str(&topo_of_file(machine, "json")).unwrap();
    let missing: Vec<&str> = survey["missing"]
        .as_array()
        .unwrap()
        .iter()
        .map(|reason| reason.as_str().unwrap())
        .collect();
    let said = ["node1/cpulist holds \"all\"", "rdmap65s0/device is not there"];
    for said in said {
        assert!(missing.iter().any(|reason| reason.contains(said)), "{said}: {missing:?}");
    }
    let nic = |name: &str| {
        let nics = survey["nics"].as_array().unwrap();
        nics.iter().find(|nic| nic["name"] == name).unwrap().clone()
    };
    assert_eq!(nic("rdmap65s0")["pci"], Value::Null);
    assert_eq!(nic("rdmap65s0")["nearest_gpus"], json!([]));
    assert_eq!(nic("rdmap66s0")["ports"][0]["is_up"], json!(false));
    let table = topo_of_file(machine, "table");
    let line = table.lines().find(|line| line.contains("rdmap65s0  ")).unwrap();
    assert!(line.trim_end().ends_with('?'), "{line}");
    assert!(texts(&topo_of_file(machine, "svg")).contains(&"down".to_owned()));
}

#[test]
fn a_name_cannot_break_the_picture() {
    let machine = "schema = 1\n[[gpu]]\nname = \"<b>&amp; \\\"x\\\" ]]>\"\n";
    let texts = texts(&topo_of_file(machine, "svg"));
    assert!(texts.iter().any(|text| text == "<b>&amp; \"x\" ]]>"), "{texts:?}");
}

#[test]
fn a_machine_without_gpus_is_described_too() {
    for format in ["table", "json", "svg"] {
        let mut command = g2g();
        command.env("CUDA_VISIBLE_DEVICES", "");
        let output = run(command, &format!("topo --format {format}"));
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let said = text(&output.stdout);
        match format {
            "table" => assert!(said.contains("no GPU is here that this process may use"), "{said}"),
            "json" => {
                let survey: Value = serde_json::from_str(&said).unwrap();
                assert_eq!((&survey["gpus"], &survey["simulated"]), (&json!([]), &json!(false)));
                assert!(!survey["nodes"].as_array().unwrap().is_empty());
            }
            _ => assert!(texts(&said)[0].contains("no GPU"), "{said}"),
        }
    }
}

/// The files of a p4d.24xlarge, as the kernel would show them.
fn files() -> &'static BTreeMap<String, Value> {
    static FILES: LazyLock<BTreeMap<String, Value>> =
        LazyLock::new(|| serde_json::from_str(simulated_system()).unwrap());
    &FILES
}

/// What a survey of these files says in all its forms; fails if one of them is malformed.
fn shown(files: &BTreeMap<String, Value>) -> survey::Survey {
    let system = System::described(&serde_json::to_string(files).unwrap()).unwrap();
    let survey = survey::shown(&system);
    assert!(!g2g::show::topology_page(&survey).styled().is_empty());
    let json: Value = serde_json::from_str(&record::topology_json(&survey)).unwrap();
    assert!(json["missing"].is_array());
    texts(&g2g::show::picture(&survey));
    survey
}

#[test]
fn whatever_the_files_say_there_is_an_answer() {
    let whole = files();
    assert!(shown(whole).missing.is_empty());
    let read = |path: &&String| {
        ["/sys/bus/pci", "/sys/class/infiniband/", "/sys/class/net/", "/sys/devices/pci"]
            .iter()
            .chain(&["/sys/devices/system/node", "/sys/devices/virtual/dmi"])
            .any(|folder| path.starts_with(folder))
    };
    let paths: Vec<&String> = whole.keys().filter(read).collect();
    assert!(paths.len() > 100, "{}", paths.len());
    let nonsense = [
        "",
        "\n",
        "-1",
        "4: ",
        "0x",
        "0xfffffffff",
        "99999999999999999999",
        "4294967295",
        "NaN",
        "inf GT/s",
        "-5 GT/s PCIe",
        "nan Gb/sec",
        "1e999 Gb/sec",
        "0-4294967295",
        "9-1",
        "\u{0}\u{1}<",
        "\u{fffd}\u{ffff}&\"",
        "0x030200",
        "0x10de",
        "1",
        "a: b: c",
    ];
    let mut random = StdRng::seed_from_u64(7);
    for _ in 0..300 {
        let mut files = whole.clone();
        for _ in 0..random.random_range(1..=8) {
            let path = paths[random.random_range(0..paths.len())];
            let text = nonsense[random.random_range(0..nonsense.len())];
            let now = match (random.random_range(0..7), &whole[path]["text"]) {
                (0, _) => {
                    files.remove(path);
                    continue;
                }
                (1, _) => json!("denied"),
                (2, _) => json!("folder"),
                (3, _) => json!({"link": "/sys/nowhere"}),
                (4, Value::String(text)) => {
                    let half = text.chars().take(text.chars().count() / 2).collect::<String>();
                    json!({"text": half})
                }
                (5, _) => json!({"text": "x".repeat(100_000)}),
                _ => json!({"text": text}),
            };
            files.insert(path.clone(), now);
        }
        shown(&files);
    }
}

#[test]
fn what_a_file_does_not_tell_is_null_and_has_a_reason() {
    let whole = files();
    let nic = "/sys/class/infiniband/rdmap64s0/ports/1";
    let gpu = |files: &BTreeMap<String, Value>| {
        let ends = |path: &&String| path.ends_with("/0000:10:00.0/numa_node");
        files.keys().find(ends).unwrap().trim_end_matches("/numa_node").to_owned()
    };
    let gpu = gpu(whole);
    for (file, text) in [
        (format!("{gpu}/numa_node"), "zero"),
        (format!("{gpu}/current_link_speed"), "16.0 GT"),
        (format!("{gpu}/max_link_width"), "x16"),
        (format!("{gpu}/local_cpulist"), "0-"),
    ] {
        let mut files = whole.clone();
        assert!(files.insert(file.clone(), json!({"text": text})).is_some(), "{file}");
        let survey = shown(&files);
        let name = file.rsplit('/').next().unwrap();
        assert_eq!(survey.missing.len(), 1, "{:?}", survey.missing);
        let reason = format!("{name} holds {text:?}");
        assert!(survey.missing[0].ends_with(&reason), "{:?}", survey.missing);
        let found = survey.other_gpus.iter().find(|gpu| gpu.address == "0000:10:00.0").unwrap();
        let told = serde_json::to_value(found).unwrap();
        let cell = match name {
            "numa_node" => &told["numa_node"],
            "current_link_speed" => &told["link"]["generation"],
            "max_link_width" => &told["link_max"]["lanes"],
            _ => &told["cpus"],
        };
        assert_eq!(*cell, Value::Null, "{name}");
    }
    let (mut files, rate) = (whole.clone(), nic.to_owned() + "/rate");
    let real = files.keys().find(|path| path.ends_with("/rdmap64s0/ports/1/rate")).unwrap().clone();
    files.insert(real, json!("denied"));
    let survey = shown(&files);
    assert_eq!(survey.nics[0].nic.rate_gbit_s(), None);
    assert_eq!(survey.missing, [format!("only root may read {rate}")]);
}
