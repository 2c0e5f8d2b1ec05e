import java.sql.*;
import java.util.*;

/** DatabaseMetaData as DBeaver, DataGrip and schema tools read it: the same definitions, on Telesto and on PostgreSQL 15, must read the same. */
final class Metadata {
    private Metadata() {}

    static final String[] DEFINITIONS = {
        "drop schema if exists jm cascade", "create schema jm", "create sequence jm.counter increment by 3 start with 5",
        "create table jm.parent (a int not null, b varchar(20) not null, label text unique, primary key (b, a))",
        "comment on table jm.parent is 'the parents'", "comment on column jm.parent.label is 'what it is called'",
        "create table jm.child (id bigserial primary key, pa int, pb varchar(20), amount numeric(10,2) default 1.5 not null, made timestamptz default now(),"
            + " kind char(3) default 'abc', flag boolean default true, tags text[], body jsonb default '{}', raw bytea, uid uuid, day date, t time(3), f4 real, f8 double precision, s smallint default 7,"
            + " constraint child_parent foreign key (pb, pa) references jm.parent (b, a) on update cascade on delete set null,"
            + " self bigint references jm.child on delete restrict, constraint child_amount check (amount > 0))",
        "create index child_made on jm.child (made desc, kind)", "create unique index child_uid on jm.child (uid)",
        "create table jm.ident (id int generated always as identity primary key, n text)",
        "create view jm.names as select id, kind, amount from jm.child where flag",
    };

    /**
     * PostgreSQL 15's types that Telesto has not (docs/sql/types.md): getTypeInfo and getUDTs are compared without exactly these and
     * arrays of them. One that Telesto gets must leave the list: it is found then, and not expected.
     */
    static final Set<String> MISSING_TYPES = Set.of((
        "money tid xid cid pg_node_tree pg_ndistinct pg_dependencies pg_mcv_list xid8 point lseg path box polygon line "
        + "circle macaddr macaddr8 aclitem regoper regoperator regcollation pg_lsn tsvector gtsvector tsquery "
        + "regconfig regdictionary jsonpath txid_snapshot pg_snapshot pg_brin_bloom_summary "
        + "pg_brin_minmax_multi_summary cardinal_number character_data sql_identifier time_stamp yes_or_no xml refcursor ").split(" "));

    /** Whether the row is of a missing type, or of an array of rows of a relation. */
    static boolean isMissing(String row, Map<String, String> relations) {
        String name = row.replaceAll(".*TYPE_NAME=(\\S+).*", "$1");
        String element = name.startsWith("_") ? name.substring(1) : "";
        return MISSING_TYPES.contains(name) || MISSING_TYPES.contains(element) || relations.containsKey(element);
    }

    static void run(String url, String reference) throws Exception {
        Map<String, List<String>> found = look(url);
        Map<String, List<String>> expected = look(reference);
        Map<String, String> relations = new HashMap<>();
        for (String relation : expected.remove("relations")) relations.put(relation.substring(1), relation.substring(0, 1));
        found.remove("relations");
        for (String call : new String[] {"getTypeInfo", "getUDTs"}) {
            expected.get(call).removeIf(row -> isMissing(row, relations));
            // Ordered by DATA_TYPE; among equals by where the rows happen to lie.
            Collections.sort(expected.get(call));
            Collections.sort(found.get(call));
        }
        // Everything is compared before the first difference ends the run, so that one run shows all of them.
        List<String> wrong = new ArrayList<>();
        for (String call : expected.keySet()) {
            if (found.get(call).equals(expected.get(call))) {
                System.out.println("ok " + call + " (" + expected.get(call).size() + " rows)");
                continue;
            }
            wrong.add(call);
            Set<String> here = new LinkedHashSet<>(found.get(call)), there = new LinkedHashSet<>(expected.get(call));
            System.out.println("FAILED " + call);
            for (String row : there) if (!here.contains(row)) System.out.println("  expected " + row);
            for (String row : here) if (!there.contains(row)) System.out.println("  found    " + row);
            if (here.equals(there)) System.out.println("  the same rows in another order\n  expected " + expected.get(call) + "\n  found    " + found.get(call));
        }
        Check.check("differences", wrong, List.of());
    }

    interface Call {
        ResultSet on(DatabaseMetaData data) throws SQLException;
    }

    static Map<String, List<String>> look(String url) throws SQLException {
        Map<String, Call> calls = new LinkedHashMap<>();
        calls.put("getSchemas", d -> d.getSchemas(null, "jm"));
        calls.put("getTableTypes", DatabaseMetaData::getTableTypes);
        calls.put("getTables", d -> d.getTables(null, "jm", "%", null));
        calls.put("getTables of types", d -> d.getTables(null, "jm", "c%", new String[] {"TABLE", "INDEX", "SEQUENCE"}));
        calls.put("getTables of pg_catalog", d -> d.getTables(null, "pg_catalog", "pg\\_c%", new String[] {"SYSTEM TABLE"}));
        for (String table : new String[] {"parent", "child", "ident", "names"}) {
            calls.put("getColumns " + table, d -> d.getColumns(null, "jm", table, "%"));
            calls.put("getPrimaryKeys " + table, d -> d.getPrimaryKeys(null, "jm", table));
            calls.put("getIndexInfo " + table, d -> d.getIndexInfo(null, "jm", table, false, true));
            calls.put("getIndexInfo unique " + table, d -> d.getIndexInfo(null, "jm", table, true, true));
            calls.put("getImportedKeys " + table, d -> d.getImportedKeys(null, "jm", table));
            calls.put("getExportedKeys " + table, d -> d.getExportedKeys(null, "jm", table));
            calls.put("getBestRowIdentifier " + table, d -> d.getBestRowIdentifier(null, "jm", table, DatabaseMetaData.bestRowSession, true));
            calls.put("getVersionColumns " + table, d -> d.getVersionColumns(null, "jm", table));
        }
        calls.put("getColumns by pattern", d -> d.getColumns(null, "jm", "%", "%a%"));
        calls.put("getCrossReference", d -> d.getCrossReference(null, "jm", "parent", null, "jm", "child"));
        calls.put("getTypeInfo", DatabaseMetaData::getTypeInfo);
        calls.put("getUDTs", d -> d.getUDTs(null, "jm", "%", null));
        calls.put("getClientInfoProperties", DatabaseMetaData::getClientInfoProperties);
        calls.put("getProcedures", d -> d.getProcedures(null, "jm", "%"));
        calls.put("getFunctions", d -> d.getFunctions(null, "jm", "%"));
        Map<String, List<String>> out = new LinkedHashMap<>();
        try (Connection connection = DriverManager.getConnection(url)) {
            try (Statement statement = connection.createStatement()) {
                for (String sql : DEFINITIONS) statement.execute(sql);
            }
            DatabaseMetaData data = connection.getMetaData();
            // The default isolation level differs: serializable here, read committed there (docs/sql/transactions.md).
            out.put("product", List.of(data.getDatabaseProductName(), String.valueOf(data.getDatabaseMajorVersion()),
                data.getIdentifierQuoteString(), String.valueOf(data.getMaxColumnNameLength()), String.valueOf(data.getMaxIndexLength())));
            out.put("keywords", List.of(data.getSQLKeywords()));
            List<String> relations = new ArrayList<>();
            try (Statement statement = connection.createStatement();
                ResultSet result = statement.executeQuery("select relkind::text || relname from pg_class where relkind in ('r', 'v')")) {
                while (result.next()) relations.add(result.getString(1));
            }
            out.put("relations", relations);
            for (var call : calls.entrySet()) {
                List<String> rows = new ArrayList<>();
                try (ResultSet result = call.getValue().on(data)) {
                    ResultSetMetaData columns = result.getMetaData();
                    while (result.next()) {
                        StringJoiner row = new StringJoiner(" ");
                        for (int n = 1; n <= columns.getColumnCount(); n++) {
                            String name = columns.getColumnLabel(n), value = result.getString(n);
                            // The database's name, and figures of the storage, are each server's own.
                            if (value == null || name.endsWith("TABLE_CAT") || name.equals("TYPE_CAT") || name.equals("CARDINALITY") || name.equals("PAGES") || name.equals("TABLE_CATALOG")) continue;
                            row.add(name + "=" + value);
                        }
                        rows.add(row.toString());
                    }
                } catch (SQLException error) {
                    rows.add("error " + error.getSQLState() + " " + error.getMessage());
                }
                out.put(call.getKey(), rows);
            }
            try (Statement statement = connection.createStatement()) {
                statement.execute("drop schema jm cascade");
            }
        }
        return out;
    }
}
