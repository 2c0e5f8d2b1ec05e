import java.sql.SQLException;
import java.util.Arrays;
import java.util.Objects;

/** What the suites beside this one share: checks that end the process at the first mismatch. */
final class Check {
    private Check() {}

    interface Action {
        void run() throws Exception;
    }

    static void check(String name, Object found, Object expected) {
        if (!Objects.deepEquals(found, expected)) {
            System.out.println("FAILED " + name + "\nexpected: " + shown(expected) + "\nfound:    " + shown(found));
            System.exit(1);
        }
        System.out.println("ok " + name);
    }

    static void fails(String name, String code, Action action) {
        try {
            action.run();
        } catch (Throwable thrown) {
            for (Throwable at = thrown; at != null; at = at.getCause()) {
                if (at instanceof SQLException error && error.getSQLState() != null) {
                    check(name, error.getSQLState(), code);
                    return;
                }
            }
            check(name, thrown.toString(), code);
            return;
        }
        check(name, "no error", code);
    }

    private static String shown(Object value) {
        return value instanceof Object[] array ? Arrays.deepToString(array) : String.valueOf(value);
    }

    public static void main(String[] args) throws Exception {
        // Usage: java Check SUITE JDBC-URL [JDBC-URL of PostgreSQL 15]
        switch (args[0]) {
            case "pgjdbc" -> Pgjdbc.run(args[1]);
            case "metadata" -> Metadata.run(args[1], args[2]);
            case "hibernate" -> HibernateOrm.run(args[1]);
            case "liquibase" -> Migrations.liquibase(args[1]);
            case "flyway" -> Migrations.flyway(args[1]);
            default -> throw new IllegalArgumentException("no suite " + args[0]);
        }
        System.out.println(args[0] + ": all ok");
        System.exit(0);
    }
}
