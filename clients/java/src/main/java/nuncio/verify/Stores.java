package nuncio.verify;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.OptionalLong;
import java.util.regex.Pattern;
import javax.sql.DataSource;

/**
 * Stores of handled deliveries. A row has a key, the highest position that was handled, and the claim of the one that is being
 * handled. For {@code once} the key is a delivery's id and the position 1; for {@code inOrder} the key is that of a subscription and
 * the position the sequence. With a {@link DataSource}, whose connections must commit by themselves, each statement has its own
 * connection. With the {@link Connection} of your open transaction, the delivery is recorded if the transaction commits.
 */
public final class Stores {
  private static final Pattern TABLE = Pattern.compile("[A-Za-z0-9_]{1,50}(\\.[A-Za-z0-9_]{1,50})?");
  private static final String POSTGRES_NOW = "clock_timestamp()";
  private static final String SQLITE_NOW = "cast((julianday('now') - 2440587.5) * 86400000 as integer)";

  private Stores() {}

  /** For one process. It forgets the oldest keys beyond 10,000, and everything when the process ends. */
  public static DeliveryStore memory() {
    return memory(10_000);
  }

  /** The same with another limit of keys. */
  public static DeliveryStore memory(int max) {
    return new Memory(max);
  }

  /**
   * In PostgreSQL:
   *
   * <pre>
   * create table nuncio_handled (
   *   key text primary key, position bigint not null, token text, until timestamptz not null
   * )
   * </pre>
   */
  public static DeliveryStore postgres(DataSource database) {
    return postgres(database, "nuncio_handled");
  }

  /** The same in another table. */
  public static DeliveryStore postgres(DataSource database, String table) {
    return postgres(new Pooled(database), table);
  }

  /** The same in the transaction of a connection. */
  public static DeliveryStore postgres(Connection transaction, String table) {
    return postgres(new Single(transaction), table);
  }

  private static DeliveryStore postgres(Source source, String table) {
    return new Sql(source, table, POSTGRES_NOW, POSTGRES_NOW + " + ? * interval '1 millisecond'");
  }

  /**
   * In SQLite 3.35 or later:
   *
   * <pre>
   * create table nuncio_handled (
   *   key text primary key, position integer not null, token text, until integer not null
   * )
   * </pre>
   */
  public static DeliveryStore sqlite(DataSource database) {
    return sqlite(database, "nuncio_handled");
  }

  /** The same in another table. */
  public static DeliveryStore sqlite(DataSource database, String table) {
    return new Sql(new Pooled(database), table, SQLITE_NOW, SQLITE_NOW + " + ?");
  }

  /** The same in the transaction of a connection. */
  public static DeliveryStore sqlite(Connection transaction, String table) {
    return new Sql(new Single(transaction), table, SQLITE_NOW, SQLITE_NOW + " + ?");
  }

  /** @param token null if there is no claim */
  private record Row(long position, String token, long until) {
    boolean isClaimed(long now) {
      return token != null && until - now > 0;
    }
  }

  private static final class Memory implements DeliveryStore {
    private final int max;
    private final Map<String, Row> rows = new LinkedHashMap<>();

    Memory(int max) {
      this.max = max;
    }

    @Override
    public synchronized OptionalLong claim(String key, long position, String token, Duration lease) {
      long now = System.nanoTime();
      Row row = rows.getOrDefault(key, new Row(0, null, 0));
      if (row.position >= position || row.isClaimed(now)) return OptionalLong.of(row.position);
      rows.remove(key);
      rows.put(key, new Row(row.position, token, now + lease.toNanos()));
      Iterator<Row> oldest = rows.values().iterator();
      while (rows.size() > max && oldest.hasNext()) if (!oldest.next().isClaimed(now)) oldest.remove();
      return OptionalLong.empty();
    }

    @Override
    public synchronized void complete(String key, long position, String token) {
      rows.computeIfPresent(key, (k, row) -> token.equals(row.token) ? new Row(position, null, 0) : row);
    }

    @Override
    public synchronized void release(String key, String token) {
      rows.computeIfPresent(key, (k, row) -> token.equals(row.token) ? new Row(row.position, null, 0) : row);
    }
  }

  private interface Work<T> {
    T with(Connection connection) throws SQLException;
  }

  private interface Source {
    <T> T run(Work<T> work) throws SQLException;
  }

  private record Pooled(DataSource database) implements Source {
    @Override
    public <T> T run(Work<T> work) throws SQLException {
      try (Connection connection = database.getConnection()) {
        return work.with(connection);
      }
    }
  }

  private record Single(Connection connection) implements Source {
    @Override
    public <T> T run(Work<T> work) throws SQLException {
      return work.with(connection);
    }
  }

  private static final class Sql implements DeliveryStore {
    private final Source source;
    private final String claim;
    private final String read;
    private final String complete;
    private final String release;

    Sql(Source source, String table, String now, String later) {
      if (!TABLE.matcher(table).matches()) {
        throw new IllegalArgumentException("table must be a name, or a schema and a name");
      }
      this.source = source;
      claim =
          "insert into " + table + " as handled (key, position, token, until) values (?, 0, ?, " + later + ")"
              + " on conflict (key) do update set token = excluded.token, until = excluded.until"
              + " where handled.position < ? and (handled.token is null or handled.until <= " + now + ") returning 1";
      read = "select position from " + table + " where key = ?";
      complete = "update " + table + " set position = ?, token = null where key = ? and token = ? returning 1";
      release = "update " + table + " set token = null where key = ? and token = ? returning 1";
    }

    @Override
    public OptionalLong claim(String key, long position, String token, Duration lease) throws SQLException {
      if (first(claim, key, token, lease.toMillis(), position).isPresent()) return OptionalLong.empty();
      // A row that was deleted since was not handled.
      return OptionalLong.of(first(read, key).orElse(0));
    }

    @Override
    public void complete(String key, long position, String token) throws SQLException {
      first(complete, position, key, token);
    }

    @Override
    public void release(String key, String token) throws SQLException {
      first(release, key, token);
    }

    /** Returns the first column of the first row, if there is a row. */
    private OptionalLong first(String text, Object... values) throws SQLException {
      return source.run(
          connection -> {
            try (PreparedStatement statement = connection.prepareStatement(text)) {
              for (int i = 0; i < values.length; i++) statement.setObject(i + 1, values[i]);
              try (ResultSet rows = statement.executeQuery()) {
                return rows.next() ? OptionalLong.of(rows.getLong(1)) : OptionalLong.empty();
              }
            }
          });
    }
  }
}
