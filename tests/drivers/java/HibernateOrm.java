import jakarta.persistence.*;
import java.math.BigDecimal;
import java.time.*;
import java.util.*;
import org.hibernate.Session;
import org.hibernate.SessionFactory;
import org.hibernate.annotations.CreationTimestamp;
import org.hibernate.annotations.JdbcTypeCode;
import org.hibernate.cfg.AvailableSettings;
import org.hibernate.cfg.Configuration;
import org.hibernate.type.SqlTypes;

/** Hibernate 6: hbm2ddl create, validate and update; entities, relations, inheritance; HQL, criteria, native SQL; versions; batches. */
final class HibernateOrm {
    private HibernateOrm() {}

    enum Rank { LOW, MIDDLE, HIGH }

    @Embeddable
    public static class Address {
        @Column(length = 40) public String street;
        public String town;
        Address() {}
        Address(String street, String town) { this.street = street; this.town = town; }
    }

    @MappedSuperclass
    public abstract static class Base {
        @Version public int version;
        @CreationTimestamp public Instant made;
    }

    @Entity(name = "Customer") @jakarta.persistence.Table(name = "hb_customer", indexes = @Index(name = "hb_customer_name", columnList = "name, rank"), uniqueConstraints = @UniqueConstraint(name = "hb_customer_email", columnNames = "email"))
    public static class Customer extends Base {
        @Id @GeneratedValue(strategy = GenerationType.SEQUENCE, generator = "hb_customer_ids")
        @SequenceGenerator(name = "hb_customer_ids", sequenceName = "hb_customer_ids", allocationSize = 20)
        public Long id;
        @Column(nullable = false, length = 60) public String name;
        public String email;
        @Enumerated(EnumType.STRING) public Rank rank;
        @Column(precision = 12, scale = 2) public BigDecimal balance = BigDecimal.ZERO;
        public boolean active = true;
        public byte[] photo;
        public UUID token;
        public LocalDate born;
        public LocalTime wakes;
        public LocalDateTime seen;
        public OffsetDateTime at;
        public Double score;
        @JdbcTypeCode(SqlTypes.JSON) public Map<String, Object> settings;
        @JdbcTypeCode(SqlTypes.ARRAY) public List<String> tags;
        @Column(columnDefinition = "text") public String notes;
        @Embedded public Address address;
        @ElementCollection @CollectionTable(name = "hb_phone") public Set<String> phones = new TreeSet<>();
        @OneToMany(mappedBy = "customer", cascade = CascadeType.ALL, orphanRemoval = true) @OrderBy("id") public List<Purchase> purchases = new ArrayList<>();
        @ManyToMany @JoinTable(name = "hb_customer_group") public Set<Circle> circles = new LinkedHashSet<>();
        public Customer() {}
        Customer(String name) { this.name = name; }
    }

    @Entity(name = "Circle") @jakarta.persistence.Table(name = "hb_circle")
    public static class Circle {
        @Id @GeneratedValue(strategy = GenerationType.IDENTITY) public Integer id;
        @Column(unique = true) public String title;
        public Circle() {}
        Circle(String title) { this.title = title; }
    }

    @Entity(name = "Purchase") @jakarta.persistence.Table(name = "hb_purchase") @Inheritance(strategy = InheritanceType.JOINED)
    public static class Purchase extends Base {
        @Id @GeneratedValue(strategy = GenerationType.IDENTITY) public Long id;
        @ManyToOne(optional = false, fetch = FetchType.LAZY) public Customer customer;
        public BigDecimal price;
        public Purchase() {}
        Purchase(Customer customer, String price) { this.customer = customer; this.price = new BigDecimal(price); }
    }

    @Entity(name = "Gift") @jakarta.persistence.Table(name = "hb_gift")
    public static class Gift extends Purchase {
        public String greeting;
        public Gift() {}
        Gift(Customer customer, String price, String greeting) { super(customer, price); this.greeting = greeting; }
    }

    static SessionFactory factory(String url, String mode, Class<?>... more) {
        Configuration configuration = new Configuration()
            .setProperty(AvailableSettings.JAKARTA_JDBC_URL, url)
            .setProperty(AvailableSettings.HBM2DDL_AUTO, mode)
            .setProperty(AvailableSettings.HBM2DDL_HALT_ON_ERROR, "true")
            .setProperty(AvailableSettings.STATEMENT_BATCH_SIZE, "25")
            .setProperty(AvailableSettings.ORDER_INSERTS, "true")
            .setProperty(AvailableSettings.DEFAULT_BATCH_FETCH_SIZE, "10");
        List<Class<?>> classes = new ArrayList<>(List.of(Customer.class, Circle.class, Purchase.class, Gift.class));
        classes.addAll(List.of(more));
        classes.forEach(configuration::addAnnotatedClass);
        return configuration.buildSessionFactory();
    }

    /** What a later version of the application adds. */
    @Entity(name = "Later") @jakarta.persistence.Table(name = "hb_later")
    public static class Later {
        @Id @GeneratedValue(strategy = GenerationType.UUID) public UUID id;
        @ManyToOne @JoinColumn(foreignKey = @ForeignKey(name = "hb_later_customer")) public Customer customer;
        @Lob public String text;
    }

    static void run(String url) throws Exception {
        java.util.logging.Logger.getLogger("").setLevel(java.util.logging.Level.SEVERE);
        try (Connections connection = new Connections(url)) {
            connection.execute("drop table if exists hb_later, hb_gift, hb_purchase, hb_customer_group, hb_phone, hb_circle, hb_customer cascade; drop sequence if exists hb_customer_ids");
        }
        try (SessionFactory factory = factory(url, "create")) {
            entities(factory);
            queries(factory);
            versions(factory);
            batches(factory);
        }
        factory(url, "validate").close();
        Check.check("validate", true, true);
        Check.fails("validate sees what is missing", "org.hibernate.tool.schema.spi.SchemaManagementException: Schema-validation: missing table [hb_later]", () -> factory(url, "validate", Later.class).close());
        factory(url, "update", Later.class).close();
        factory(url, "update", Later.class).close();
        factory(url, "validate", Later.class).close();
        try (Connections connection = new Connections(url)) {
            Check.check("updated once", connection.longs("select count(*) from pg_constraint where conrelid = 'hb_later'::regclass"), List.of(2L));
            Check.check("rows kept", connection.longs("select count(*) from hb_customer").get(0) > 0, true);
        }
        SessionFactory last = factory(url, "create-drop", Later.class);
        last.close();
        try (Connections connection = new Connections(url)) {
            Check.check("dropped", connection.longs("select count(*) from pg_class where relname like 'hb\\_%'"), List.of(0L));
        }
    }

    /** A plain connection. */
    static final class Connections implements AutoCloseable {
        final java.sql.Connection connection;
        Connections(String url) throws java.sql.SQLException { connection = java.sql.DriverManager.getConnection(url); }
        void execute(String sql) throws java.sql.SQLException {
            try (var statement = connection.createStatement()) { statement.execute(sql); }
        }
        List<Long> longs(String sql) throws java.sql.SQLException {
            List<Long> out = new ArrayList<>();
            try (var statement = connection.createStatement(); var rows = statement.executeQuery(sql)) {
                while (rows.next()) out.add(rows.getLong(1));
            }
            return out;
        }
        public void close() throws java.sql.SQLException { connection.close(); }
    }

    static void entities(SessionFactory factory) {
        UUID token = new UUID(1, 2);
        OffsetDateTime at = OffsetDateTime.of(2024, 2, 29, 12, 0, 0, 123000000, ZoneOffset.UTC);
        Long id = factory.fromTransaction(session -> {
            Customer ada = new Customer("Ada");
            ada.email = "ada@x";
            ada.rank = Rank.HIGH;
            ada.balance = new BigDecimal("12.50");
            ada.photo = new byte[] {0, -1};
            ada.token = token;
            ada.born = LocalDate.of(1815, 12, 10);
            ada.wakes = LocalTime.of(6, 30);
            ada.seen = LocalDateTime.of(2024, 1, 2, 3, 4, 5);
            ada.at = at;
            ada.score = 1.25;
            ada.settings = Map.of("a", List.of(1, "x"));
            ada.tags = List.of("x", "y, z");
            ada.notes = "æ".repeat(5000);
            ada.address = new Address("Lane 1", "London");
            ada.phones.addAll(List.of("1", "2"));
            ada.purchases.add(new Purchase(ada, "1.5"));
            ada.purchases.add(new Gift(ada, "2.5", "hello"));
            Circle one = new Circle("one"), two = new Circle("two");
            session.persist(one);
            session.persist(two);
            ada.circles.addAll(List.of(one, two));
            session.persist(ada);
            session.persist(new Customer("Nobody"));
            return ada.id;
        });
        factory.inTransaction(session -> {
            Customer ada = session.find(Customer.class, id);
            Check.check("types", Arrays.asList(ada.name, ada.email, ada.rank, ada.balance, ada.active, ada.token, ada.born, ada.wakes, ada.seen, ada.at.toInstant(), ada.score, ada.settings, ada.tags, ada.notes.length(), ada.address.town, ada.version, ada.made != null),
                Arrays.asList("Ada", "ada@x", Rank.HIGH, new BigDecimal("12.50"), true, token, LocalDate.of(1815, 12, 10), LocalTime.of(6, 30), LocalDateTime.of(2024, 1, 2, 3, 4, 5), at.toInstant(), 1.25, Map.of("a", List.of(1, "x")), List.of("x", "y, z"), 5000, "London", 0, true));
            Check.check("bytes", ada.photo, new byte[] {0, -1});
            Check.check("relations", List.of(new TreeSet<>(ada.phones).toString(), ada.purchases.size(), ((Gift) ada.purchases.get(1)).greeting, ada.circles.size()), List.of("[1, 2]", 2, "hello", 2));
            ada.purchases.remove(0);
            ada.phones.remove("1");
            ada.address.town = "Paris";
        });
        factory.inTransaction(session -> {
            Customer ada = session.find(Customer.class, id);
            Check.check("changed", List.of(ada.purchases.size(), ada.phones.size(), ada.address.town, ada.version), List.of(1, 1, "Paris", 1));
            Customer nobody = session.createQuery("from Customer where email is null", Customer.class).getSingleResult();
            Check.check("nulls", Arrays.asList(nobody.rank, nobody.token, nobody.settings, nobody.tags, nobody.address), Arrays.asList(null, null, null, null, null));
        });
        Check.fails("unique", "23505", () -> factory.inTransaction(session -> {
            Customer twin = new Customer("Twin");
            twin.email = "ada@x";
            session.persist(twin);
        }));
        Check.fails("check of the enumeration", "23514", () -> factory.inTransaction(session -> session.createNativeMutationQuery("update hb_customer set rank = 'NONE'").executeUpdate()));
    }

    static void queries(SessionFactory factory) {
        factory.inTransaction(session -> {
            for (int n = 0; n < 30; n++) {
                Customer customer = new Customer("C" + n % 5);
                customer.balance = new BigDecimal(n);
                customer.rank = Rank.values()[n % 3];
                customer.born = LocalDate.of(2000, 1 + n % 12, 1);
                customer.purchases.add(new Purchase(customer, "10." + n));
                session.persist(customer);
            }
        });
        factory.inTransaction(session -> {
            Check.check("group", session.createQuery("select c.name, count(*), sum(c.balance), avg(c.balance) from Customer c where c.name like 'C%' group by c.name having count(*) > 1 order by c.name", Object[].class)
                .setMaxResults(2).setFirstResult(1).getResultList().stream().map(Arrays::toString).toList(), List.of("[C1, 6, 81.00, 13.5]", "[C2, 6, 87.00, 14.5]"));
            Check.check("fetch join", session.createQuery("select distinct c from Customer c join fetch c.purchases p where p.price > :price order by c.id", Customer.class).setParameter("price", new BigDecimal("10.8")).getResultList().size(), 1);
            Check.check("functions", session.createQuery("select upper(c.name), extract(year from c.born), coalesce(c.email, '-'), length(c.name), concat(c.name, '!'), cast(c.balance as String), year(c.born) + 1, mod(cast(c.balance as Integer), 7) from Customer c where c.balance = 9", Object[].class)
                .getResultList().stream().map(Arrays::toString).toList(), List.of("[C4, 2000, -, 2, C4!, 9.00, 2001, 2]"));
            Check.check("subqueries", session.createQuery("select count(c) from Customer c where exists (select 1 from Gift g where g.customer = c) or c.balance = (select max(x.balance) from Customer x) or size(c.purchases) > 5", Long.class).getSingleResult(), 2L);
            Check.check("polymorphic", session.createQuery("select type(p), count(*) from Purchase p group by type(p) order by count(*)", Object[].class).getResultList().stream().map(r -> ((Class<?>) r[0]).getSimpleName() + r[1]).toList(), List.of("Gift1", "Purchase30"));
            Check.check("in list", session.createQuery("select count(*) from Customer where rank in (:ranks) and name in ('C1', 'C2')", Long.class).setParameterList("ranks", List.of(Rank.LOW, Rank.HIGH)).getSingleResult(), 8L);
            Check.check("window", session.createQuery("select c.name, row_number() over (partition by c.name order by c.balance desc) as r from Customer c where c.name = 'C1' order by r", Object[].class).getResultList().size(), 6);
            Check.check("with", session.createQuery("with few as (select c.id as id, c.balance as b from Customer c where c.balance > 25) select count(*) from few f where f.b < 28", Long.class).getSingleResult(), 2L);
            Check.check("update", session.createMutationQuery("update Customer set balance = balance * 2, version = version + 1 where name = 'C3'").executeUpdate(), 6);
            Check.check("insert select", session.createMutationQuery("insert into Circle (title) select 'from ' || c.name from Customer c where c.balance = 4").executeUpdate(), 1);
            Check.check("delete of a joined hierarchy", session.createMutationQuery("delete from Purchase p where p.customer.id in (select c.id from Customer c where c.name = 'C0')").executeUpdate(), 6);
            Check.check("native", session.createNativeQuery("select c.* from hb_customer c where c.balance = :b", Customer.class).setParameter("b", 29).getResultList().size(), 1);
            Check.check("timestamps", session.createQuery("select count(*) from Customer where made > current_timestamp - 1 day and born < local date", Long.class).getSingleResult(), 31L);
            var builder = session.getCriteriaBuilder();
            var query = builder.createQuery(Customer.class);
            var root = query.from(Customer.class);
            query.where(builder.and(builder.like(root.get("name"), "C_"), builder.between(root.get("balance"), new BigDecimal(10), new BigDecimal(12)))).orderBy(builder.desc(root.get("balance")));
            Check.check("criteria", session.createQuery(query).setMaxResults(2).getResultList().size(), 2);
            try (var scroll = session.createQuery("from Customer order by id", Customer.class).setFetchSize(7).scroll(org.hibernate.ScrollMode.FORWARD_ONLY)) {
                int rows = 0;
                while (scroll.next()) rows++;
                Check.check("scroll", rows, 32);
            }
        });
    }

    static void versions(SessionFactory factory) {
        try (Session one = factory.openSession(); Session two = factory.openSession()) {
            Customer first = one.createQuery("from Customer where email = 'ada@x'", Customer.class).getSingleResult();
            Customer second = two.find(Customer.class, first.id);
            one.beginTransaction();
            first.name = "first";
            one.getTransaction().commit();
            two.beginTransaction();
            second.name = "second";
            String outcome = "no error";
            try {
                two.getTransaction().commit();
            } catch (OptimisticLockException error) {
                outcome = "stale";
            }
            Check.check("optimistic lock", outcome, "stale");
        }
        factory.inTransaction(session -> {
            Customer locked = session.createQuery("from Customer where email = 'ada@x'", Customer.class).setLockMode(LockModeType.PESSIMISTIC_WRITE).getSingleResult();
            Check.check("pessimistic lock", locked.name, "first");
            session.refresh(locked, LockModeType.PESSIMISTIC_READ);
            locked.name = "Ada";
        });
    }

    static void batches(SessionFactory factory) {
        factory.inTransaction(session -> {
            for (int n = 0; n < 100; n++) {
                Customer customer = new Customer("B" + n);
                customer.email = "b" + n;
                session.persist(customer);
            }
        });
        factory.inTransaction(session -> {
            List<Customer> all = session.createQuery("from Customer where name like 'B%'", Customer.class).getResultList();
            all.forEach(customer -> customer.score = 2.0);
            session.flush();
            Check.check("batched updates", session.createQuery("select sum(score) from Customer where name like 'B%'", Double.class).getSingleResult(), 200.0);
            all.forEach(session::remove);
        });
        factory.inTransaction(session -> Check.check("batched deletes", session.createQuery("select count(*) from Customer where name like 'B%'", Long.class).getSingleResult(), 0L));
    }
}
