//! `krablet version`: what this binary is.

use krablet_config::KUBERNETES_VERSION;

pub fn run(json: bool) {
    let krablet = env!("CARGO_PKG_VERSION");
    if json {
        let value = serde_json::json!({
            "krablet": krablet,
            "kubernetes": KUBERNETES_VERSION,
            "cri": "v1",
            "os": std::env::consts::OS,
            "arch": std::env::consts::ARCH,
        });
        println!("{value}");
        return;
    }
    println!("krablet {krablet}");
    println!("behaves as the kubelet of Kubernetes {KUBERNETES_VERSION}");
    println!(
        "speaks CRI v1; built for {}/{}",
        std::env::consts::OS,
        std::env::consts::ARCH
    );
}
