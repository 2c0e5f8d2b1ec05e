//! PostgreSQL's fixed type OIDs; those of ranges are with their kinds
//! ([`crate::ranges::RangeKind::oids`]).
#![allow(missing_docs)]

pub const BOOL: u32 = 16;
pub const BYTEA: u32 = 17;
pub const INTERNAL_CHAR: u32 = 18;
pub const NAME: u32 = 19;
pub const INT8: u32 = 20;
pub const INT2: u32 = 21;
pub const INT2VECTOR: u32 = 22;
pub const INT4: u32 = 23;
pub const REGPROC: u32 = 24;
pub const TEXT: u32 = 25;
pub const OID: u32 = 26;
pub const XID: u32 = 28;
pub const OIDVECTOR: u32 = 30;
pub const JSON: u32 = 114;
pub const PG_NODE_TREE: u32 = 194;
pub const CIDR: u32 = 650;
pub const FLOAT4: u32 = 700;
pub const FLOAT8: u32 = 701;
pub const UNKNOWN: u32 = 705;
pub const INET: u32 = 869;
pub const BPCHAR: u32 = 1042;
pub const VARCHAR: u32 = 1043;
pub const DATE: u32 = 1082;
pub const TIME: u32 = 1083;
pub const TIMESTAMP: u32 = 1114;
pub const TIMESTAMPTZ: u32 = 1184;
pub const INTERVAL: u32 = 1186;
pub const TIMETZ: u32 = 1266;
pub const BIT: u32 = 1560;
pub const VARBIT: u32 = 1562;
pub const NUMERIC: u32 = 1700;
pub const REGPROCEDURE: u32 = 2202;
pub const REGCLASS: u32 = 2205;
pub const REGTYPE: u32 = 2206;
pub const RECORD: u32 = 2249;
pub const VOID: u32 = 2278;
pub const UUID: u32 = 2950;
pub const JSONB: u32 = 3802;
pub const REGNAMESPACE: u32 = 4089;
pub const REGROLE: u32 = 4096;
