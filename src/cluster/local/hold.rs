//! `drainwatch internal hold`: brings a cluster up, says so, and keeps it until it is told to go.
//! For tests of how a cluster ends, and for looking into one by hand.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use super::LocalProvider;
use crate::cluster::{Cluster, ClusterError, Provider};
use crate::config::{ClusterSpec, ProviderKind, ProxyMode};

#[derive(Parser)]
#[command(name = "hold")]
struct Hold {
    #[arg(long, default_value = "1.34.0")]
    kubernetes: String,
    #[arg(long, default_value_t = 2)]
    nodes: u32,
    #[arg(long, default_value = "iptables")]
    proxy_mode: String,
    /// Where logs go should it fail.
    #[arg(long, default_value = "logs")]
    logs: std::path::PathBuf,
    /// An archive to load.
    #[arg(long)]
    image: Option<std::path::PathBuf>,
}

/// Prints one JSON line once the cluster is up, and another with how long its end took. Ends the
/// cluster at the end of standard input, or at SIGINT (exit code 130).
pub(super) fn main(args: &[String]) -> ExitCode {
    let args = match Hold::try_parse_from(std::iter::once("hold").chain(args.iter().map(|a| &**a)))
    {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.to_string()),
    };
    match runtime.block_on(hold(args)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => fail(&error.to_string()),
    }
}

fn fail(text: &str) -> ExitCode {
    eprintln!("drainwatch: {text}");
    ExitCode::from(4)
}

async fn hold(args: Hold) -> Result<u8, ClusterError> {
    let io = |source| ClusterError::Io { what: "signals".into(), source };
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io)?;
    let spec = ClusterSpec {
        provider: ProviderKind::Local,
        kubernetes: args.kubernetes,
        nodes: args.nodes,
        proxy_mode: match args.proxy_mode.as_str() {
            "nftables" => ProxyMode::Nftables,
            "ipvs" => ProxyMode::Ipvs,
            _ => ProxyMode::Iptables,
        },
        sysctls: Default::default(),
        dns: false,
        pod_sysctls: Default::default(),
        dual_stack: false,
    };
    let provider = LocalProvider::default();
    let begun = Instant::now();
    let cluster = tokio::select! {
        cluster = provider.up(&spec, &args.logs) => cluster?,
        _ = interrupt.recv() => return Ok(130),
    };
    let up_ms = begun.elapsed().as_millis();
    if let Some(image) = args.image {
        cluster.load_image(&image).await?;
    }
    println!(
        "{}",
        serde_json::json!({
            "name": cluster.name(), "kubeconfig": cluster.kubeconfig(), "up_ms": up_ms as u64,
            "nodes": cluster.nodes().iter().map(|n| n.address).collect::<Vec<_>>(),
            "pids": cluster.nodes().iter().map(|n| n.pid).collect::<Vec<_>>(),
        })
    );
    let (over, end_of_input) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = over.send(());
    });
    let code = tokio::select! {
        _ = interrupt.recv() => 130,
        _ = end_of_input => 0,
    };
    let begun = Instant::now();
    Cluster::down(cluster).await?;
    println!("{}", serde_json::json!({"down_ms": begun.elapsed().as_millis() as u64}));
    Ok(code)
}
