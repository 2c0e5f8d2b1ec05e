//! Where a node listens for the other nodes on its bucket, when it is not told.
//!
//! ```text
//! bucket        other nodes are            so it listens at
//! memory://     none                       nothing
//! a folder      processes of this machine  127.0.0.1, any port
//! elsewhere     on machines that reach     the address that this machine has towards the store: 7433 if it is free, else any port
//!               the same store
//! ```
//! # Invariants
//! - It listens at one address, never at all of them: nodes that are told nothing are not open to
//!   networks by which nobody of them comes. (Whoever comes must show a certificate made from the
//!   cluster's token, in any case.)
//!
//! # On failure
//! Where no address is found the start is refused, with the settings that help.
//!
//! # Limits
//! A machine whose own address is one of the whole network's listens there. A node on the store's
//! own machine that reaches it as localhost is not reached from others: it needs
//! `--cluster HOST:PORT`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use telesto::ClusterOptions;
use telesto_bucket::{BucketOptions, ReachedFrom, reached_from};

use super::settings::{Role, Settings, address};

/// Where nodes listen for each other, where they may choose.
const PORT: u16 = 7433;
/// Addresses that nobody has (RFC 5737, RFC 3849): by which of its own a machine would send to them
/// says which one the network sees.
const OUTSIDE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// How this process is a node of the cluster on `bucket` (a URL); `None`: it is none.
///
/// # Errors
/// What is wrong with the settings, or that no address is known at which others would reach this
/// node.
pub fn cluster(settings: &Settings, bucket: &str) -> Result<Option<ClusterOptions>, String> {
    let asked = settings.cluster.as_deref().unwrap_or("auto");
    let automatic = asked == "auto";
    let listen = match asked {
        "off" => None,
        "auto" => listening_for(bucket)?,
        given => match address(given)? {
            Some(listen) => Some(listen),
            None => return Err("--cluster needs an address, HOST:PORT, or auto, or off".to_owned()),
        },
    };
    let Some(listen) = listen else { return refuse_what_is_for_nodes(settings).map(|()| None) };
    let zone = match settings.locality.as_deref() {
        None => String::new(),
        Some(locality) => locality
            .strip_prefix("zone=")
            .map(str::to_owned)
            .ok_or_else(|| format!("--locality {locality:?} is not understood; write zone=NAME"))?,
    };
    let defaults = ClusterOptions::new(listen);
    Ok(Some(ClusterOptions {
        advertise: settings.advertise.clone(),
        zone,
        role: match settings.role {
            Some(Role::Follower) => telesto_cluster::NodeRole::Follower,
            Some(Role::Full) | None => telesto_cluster::NodeRole::Full,
        },
        replicas: settings.replicas.unwrap_or(defaults.replicas),
        token_file: settings.join_token_file.clone(),
        automatic,
        accept_copy: settings.accept_older_bucket.unwrap_or(false),
        ..defaults
    }))
}

/// Settings of nodes have no meaning for a process that is none.
fn refuse_what_is_for_nodes(settings: &Settings) -> Result<(), String> {
    for (name, given) in [
        ("advertise", settings.advertise.is_some()),
        ("locality", settings.locality.is_some()),
        ("role", settings.role.is_some()),
        ("replicas", settings.replicas.is_some()),
        ("join-token-file", settings.join_token_file.is_some()),
    ] {
        if given {
            return Err(format!(
                "--{name} is for nodes of a cluster, and this process is none; drop it, or say --cluster auto on a bucket that others reach"
            ));
        }
    }
    Ok(())
}

/// Where a node on `bucket` listens for others; `None`: there can be none.
fn listening_for(bucket: &str) -> Result<Option<SocketAddr>, String> {
    let from =
        reached_from(bucket, &BucketOptions::default()).map_err(|error| error.to_string())?;
    let ip = match from {
        ReachedFrom::Process => return Ok(None),
        ReachedFrom::Machine => {
            return Ok(Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))));
        }
        ReachedFrom::Network { store } => own_address(store),
    };
    let ip = ip.ok_or(
        "no address of this machine is known at which other nodes could reach it; say one with --cluster HOST:PORT, or --cluster off",
    )?;
    Ok(Some(SocketAddr::from((ip, PORT))))
}

/// The address that this machine has towards `store`, or towards the network. Nothing is sent.
fn own_address(store: Option<IpAddr>) -> Option<IpAddr> {
    store.into_iter().chain(OUTSIDE).find_map(towards)
}

fn towards(peer: IpAddr) -> Option<IpAddr> {
    let any = match peer {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((peer, PORT)).ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_unspecified()).then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(settings: Settings, bucket: &str) -> Result<Option<ClusterOptions>, String> {
        cluster(&settings, bucket)
    }

    #[test]
    fn nodes_listen_where_those_on_the_same_bucket_are() {
        let local = of(Settings::default(), "file:///tmp/x").expect("a folder").expect("a node");
        assert_eq!(local.listen, SocketAddr::from(([127, 0, 0, 1], 0)));
        assert!(local.automatic);
        assert!(of(Settings::default(), "memory://x").expect("memory").is_none());
        let off = Settings { cluster: Some("off".to_owned()), ..Settings::default() };
        assert!(of(off.clone(), "file:///tmp/x").expect("off").is_none());
        let error =
            of(Settings { replicas: Some(5), ..off }, "file:///tmp/x").expect_err("refused");
        assert!(error.contains("--replicas"), "{error}");
        let given = Settings { cluster: Some("127.0.0.1:7".to_owned()), ..Settings::default() };
        let given = of(given, "s3://bucket/x").expect("given").expect("a node");
        assert_eq!((given.listen.port(), given.automatic), (7, false));
        let none = Settings { cluster: Some("none".to_owned()), ..Settings::default() };
        assert!(of(none, "s3://bucket/x").is_err());
    }

    #[test]
    fn the_store_says_by_which_address_this_machine_is_reached() {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(own_address(Some(loopback)), Some(loopback));
        assert_ne!(own_address(None), Some(loopback));
    }
}
