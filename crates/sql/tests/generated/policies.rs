//! Policies of row security and statements under them, made at random.

use rand::Rng as _;

use super::Made;

/// Everybody has every right on the tables: what is left to differ is the rows.
pub const SETUP: &[&str] = &[
    "CREATE ROLE boss SUPERUSER",
    "SET SESSION AUTHORIZATION boss",
    "CREATE SCHEMA s0",
    "CREATE SCHEMA s1",
    "CREATE TABLE s0.p0 (a int PRIMARY KEY, b int, who text DEFAULT current_user)",
    "CREATE TABLE s0.p1 (a int PRIMARY KEY, b int, who text)",
    "CREATE TABLE s1.p2 (a int, b int, who text)",
    "CREATE VIEW s0.pv AS SELECT a, b, who FROM s0.p0 WHERE b < 8",
    "CREATE VIEW s1.pw WITH (security_invoker = true) AS SELECT a, b, who FROM s0.p1",
    "INSERT INTO s0.p0 SELECT i, i % 4, 'r' || i % 5 FROM generate_series(1, 12) i",
    "INSERT INTO s0.p1 SELECT i, i % 3, 'r' || i % 5 FROM generate_series(1, 9) i",
    "INSERT INTO s1.p2 SELECT i % 6, i, 'r' || i % 5 FROM generate_series(1, 10) i",
    "GRANT ALL ON SCHEMA s0, s1 TO PUBLIC",
    "GRANT ALL ON s0.p0, s0.p1, s1.p2, s0.pv, s1.pw TO PUBLIC",
    "ALTER TABLE s0.p0 OWNER TO r0",
    "ALTER VIEW s0.pv OWNER TO r3",
    "ALTER TABLE s0.p1 OWNER TO r1",
    "GRANT r2 TO r4",
    "ALTER ROLE r3 BYPASSRLS",
    "ALTER TABLE s0.p0 ENABLE ROW LEVEL SECURITY",
    "ALTER TABLE s0.p1 ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY begun ON s0.p0 USING (b < 3)",
];

/// What is compared in the end.
pub const LISTS: &[&str] = &[
    "SELECT schemaname, tablename, policyname, permissive, roles::text, cmd, qual IS NULL, with_check IS NULL FROM pg_policies ORDER BY 1, 2, 3",
    "SELECT relname, relrowsecurity, relforcerowsecurity FROM pg_class WHERE relname IN ('p0', 'p1', 'p2') ORDER BY 1",
    "SELECT a, b, who FROM s0.p0 ORDER BY 1",
    "SELECT a, b, who FROM s0.p1 ORDER BY 1",
    "SELECT a, b, who FROM s1.p2 ORDER BY 1, 2, 3",
];

impl Made {
    fn guarded(&mut self) -> &'static str {
        self.one(&["s0.p0", "s0.p0", "s0.p1", "s0.p1", "s1.p2"])
    }

    fn seen(&mut self) -> &'static str {
        self.one(&["s0.p0", "s0.p1", "s1.p2", "s0.pv", "s1.pw"])
    }

    fn condition(&mut self) -> String {
        let n = self.0.random_range(0..9);
        match self.0.random_range(0..13) {
            0 => format!("a > {n}"),
            1 => format!("b = {n}"),
            2 => format!("b <> {n} AND a < 10"),
            3 => "who = current_user".to_owned(),
            4 => format!("who = current_user OR a % 2 = {}", n % 2),
            5 => self.one(&["true", "false", "NULL::boolean"]).to_owned(),
            // Of a table without policies: one with its own could come round to this one.
            6 => format!(
                "EXISTS (SELECT 1 FROM pg_roles r WHERE r.rolname = who AND r.rolname <> 'r{}')",
                n % 5
            ),
            7 => "a IN (1, 2, 3, 5, 8)".to_owned(),
            8 => format!("coalesce(b, 0) BETWEEN 1 AND {n}"),
            9 => "b IS NOT NULL".to_owned(),
            10 => format!("length(who) + a > {n}"),
            11 => format!("pg_has_role(current_user, 'r{}', 'member')", n % 5),
            _ => format!("NOT (a = {n})"),
        }
    }

    fn define_policy(&mut self) -> String {
        let table = self.guarded();
        let name = self.one(&["begun", "p", "q", "r", "s"]);
        let to = match self.0.random_range(0..5) {
            0 => " TO PUBLIC".to_owned(),
            1 => format!(" TO {}", self.role()),
            2 => format!(" TO {}, {}", self.role(), self.role()),
            3 => " TO CURRENT_USER".to_owned(),
            _ => String::new(),
        };
        let (using, check) = (self.condition(), self.condition());
        match self.0.random_range(0..12) {
            0..=4 => {
                let kind = self.one(&["", "", " AS PERMISSIVE", " AS RESTRICTIVE"]);
                let (command, bodies) = match self.0.random_range(0..8) {
                    0 => (" FOR SELECT", format!(" USING ({using})")),
                    1 => (" FOR INSERT", format!(" WITH CHECK ({check})")),
                    2 => (" FOR DELETE", format!(" USING ({using})")),
                    3 => (" FOR UPDATE", format!(" USING ({using})")),
                    4 => (" FOR UPDATE", format!(" USING ({using}) WITH CHECK ({check})")),
                    5 => (" FOR INSERT", format!(" USING ({using})")),
                    6 => ("", format!(" USING ({using}) WITH CHECK ({check})")),
                    _ => (" FOR ALL", format!(" USING ({using})")),
                };
                format!("CREATE POLICY {name} ON {table}{kind}{command}{to}{bodies}")
            }
            5 | 6 => format!("DROP POLICY {}{name} ON {table}", self.one(&["", "IF EXISTS "])),
            7 => format!("ALTER POLICY {name} ON {table}{to} USING ({using})"),
            8 => format!("ALTER POLICY {name} ON {table} WITH CHECK ({check})"),
            _ => {
                let how = ["ENABLE", "ENABLE", "FORCE", "NO FORCE", "DISABLE"];
                format!("ALTER TABLE {table} {} ROW LEVEL SECURITY", self.one(&how))
            }
        }
    }

    fn read_guarded(&mut self) -> String {
        let (table, n) = (self.seen(), self.0.random_range(0..12));
        match self.0.random_range(0..12) {
            0 => format!("SELECT count(*) FROM {table}"),
            1 => format!("SELECT * FROM {table} WHERE a = {n} ORDER BY 1, 2, 3"),
            2 => format!("SELECT a FROM {table} WHERE a IN ({n}, 3, 4) ORDER BY 1"),
            3 => format!("SELECT * FROM {table} ORDER BY 1, 2, 3 LIMIT 4"),
            4 => format!("SELECT a, b FROM {table} WHERE a >= {n} ORDER BY 1, 2"),
            5 => format!("SELECT b, count(*), max(a) FROM {table} GROUP BY b ORDER BY 1"),
            6 => format!(
                "SELECT x.a, y.b FROM {table} x JOIN {} y ON x.a = y.a ORDER BY 1, 2",
                self.seen()
            ),
            7 => format!(
                "SELECT x.a, y.b FROM {table} x LEFT JOIN {} y ON x.a = y.a ORDER BY 1, 2",
                self.seen()
            ),
            8 => format!(
                "SELECT a FROM {table} x WHERE NOT EXISTS (SELECT 1 FROM {} y WHERE y.a = x.a) ORDER BY 1",
                self.seen()
            ),
            9 => format!(
                "SELECT who, (SELECT max(b) FROM {} y WHERE y.who = x.who) FROM {table} x ORDER BY 1, 2",
                self.seen()
            ),
            // Fails on rows that b = 0 of: hidden ones must not be among them.
            10 => format!("SELECT sum(100 / b) FROM {table} WHERE b > 0"),
            _ => format!("SELECT a FROM {table} UNION SELECT b FROM {} ORDER BY 1", self.seen()),
        }
    }

    fn write_guarded(&mut self) -> String {
        let (table, n) = (self.guarded(), self.0.random_range(0..16));
        let who = self.role();
        match self.0.random_range(0..21) {
            15 => format!(
                "INSERT INTO {} VALUES ({n}, {}, '{who}') ON CONFLICT (a) DO UPDATE SET b = excluded.b",
                self.one(&["s0.p0", "s0.p1"]),
                n % 5
            ),
            16 => format!(
                "INSERT INTO {table} AS t VALUES ({n}, 1, '{who}') ON CONFLICT (a) DO UPDATE SET who = excluded.who, b = t.b + 1 RETURNING a, b, who"
            ),
            18 => format!(
                "MERGE INTO {table} t USING (SELECT {n} AS k) s ON t.a = s.k WHEN MATCHED THEN UPDATE SET b = t.b + 1 WHEN NOT MATCHED THEN INSERT (a, b, who) VALUES (s.k, 2, '{who}')"
            ),
            19 => format!(
                "MERGE INTO {table} t USING (SELECT {n} AS k) s ON t.a = s.k WHEN MATCHED AND t.b > 2 THEN DELETE WHEN MATCHED THEN UPDATE SET who = '{who}'"
            ),
            20 => format!(
                "MERGE INTO {} t USING s1.p2 s ON t.a = s.b WHEN MATCHED AND s.b < {n} THEN UPDATE SET b = 1 WHEN MATCHED THEN DO NOTHING",
                self.one(&["s0.p0", "s0.p1"])
            ),
            17 => format!(
                "INSERT INTO s0.pv VALUES ({n}, 1, '{who}') ON CONFLICT (a) DO UPDATE SET b = 3"
            ),
            0 => format!("INSERT INTO {table} (a, b) VALUES ({n}, {})", n % 5),
            1 => format!("INSERT INTO {table} VALUES ({n}, {}, '{who}')", n % 4),
            2 => format!("INSERT INTO {table} VALUES ({n}, 1, '{who}') RETURNING a, who"),
            3 => format!("INSERT INTO {table} VALUES ({n}, 2, '{who}') ON CONFLICT DO NOTHING"),
            4 => format!("INSERT INTO s1.p2 SELECT a, b, who FROM {} WHERE a = {n}", self.seen()),
            5 => format!("UPDATE {table} SET b = {} WHERE a = {n}", n % 6),
            6 => format!("UPDATE {table} SET b = b + 1 WHERE a = {n}"),
            7 => format!("UPDATE {table} SET who = '{who}' WHERE b = {}", n % 4),
            8 => format!("UPDATE {table} SET b = b + 1"),
            9 => format!("UPDATE {table} SET b = b - 1 WHERE a < {n} AND who = '{who}'"),
            10 => format!("DELETE FROM {table} WHERE a = {n}"),
            11 => format!("DELETE FROM {table} WHERE who = '{who}' AND a > 8"),
            12 => format!(
                "UPDATE {table} t SET b = x.b FROM {} x WHERE x.a = t.a AND t.a = {n} AND false",
                self.seen()
            ),
            13 => format!(
                "DELETE FROM {table} t USING {} x WHERE x.a = t.a AND x.a = {n}",
                self.seen()
            ),
            _ => format!(
                "WITH w AS (SELECT a FROM {} WHERE b = 1) UPDATE {table} SET b = 7 WHERE a IN (SELECT a FROM w)",
                self.seen()
            ),
        }
    }

    /// A statement of a script about policies.
    pub fn of_policies(&mut self) -> String {
        match self.0.random_range(0..10) {
            0 | 1 => self.define_policy(),
            2..=5 => self.read_guarded(),
            6..=8 => self.write_guarded(),
            _ => {
                let role = self.role();
                match self.0.random_range(0..4) {
                    0 => format!("SET row_security = {}", self.one(&["on", "on", "off"])),
                    1 => format!("SELECT row_security_active('{}')", self.guarded()),
                    2 => format!("ALTER ROLE {role} {}", self.one(&["NOBYPASSRLS", "BYPASSRLS"])),
                    _ => format!("SET ROLE {role}"),
                }
            }
        }
    }
}
