package nuncio.verify;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.nio.file.Path;
import java.sql.Connection;
import java.sql.Statement;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import javax.sql.DataSource;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.postgresql.ds.PGSimpleDataSource;
import org.sqlite.SQLiteDataSource;

/** Handling once and in order. PostgreSQL needs DATABASE_URL_JDBC, a database where tables can be created. */
final class HandlingTest {
  private static final String LANE = "5b0c7a41-9e2d-8f3a-8c41";

  @TempDir Path folder;

  private static Delivery delivery(long sequence) {
    return new Delivery(String.format("%s-%012x", LANE, sequence), "push", sequence, null, null);
  }

  private static void ignore(Delivery delivery) {}

  private static void fail(Delivery delivery) {
    throw new IllegalStateException("failed");
  }

  private static void run(DataSource database, String text) throws Exception {
    try (Connection connection = database.getConnection();
        Statement statement = connection.createStatement()) {
      statement.execute(text);
    }
  }

  private SQLiteDataSource sqlite() throws Exception {
    SQLiteDataSource database = new SQLiteDataSource();
    database.setUrl("jdbc:sqlite:" + folder.resolve("app.sqlite"));
    run(
        database,
        "create table if not exists nuncio_handled"
            + " (key text primary key, position integer not null, token text, until integer not null)");
    return database;
  }

  private DeliveryStore open(String name) throws Exception {
    if (name.equals("memory")) return Stores.memory();
    if (name.equals("sqlite")) return Stores.sqlite(sqlite());
    String url = System.getenv("DATABASE_URL_JDBC");
    assumeTrue(url != null, "no DATABASE_URL_JDBC");
    PGSimpleDataSource database = new PGSimpleDataSource();
    database.setUrl(url);
    String table = "public.handled_" + UUID.randomUUID().toString().replace("-", "");
    run(
        database,
        "create table " + table + " (key text primary key, position bigint not null, token text, until timestamptz not null)");
    return Stores.postgres(database, table);
  }

  @ParameterizedTest
  @ValueSource(strings = {"memory", "sqlite", "postgres"})
  void eachIdRunsOnceAndAgainAfterAFailure(String name) throws Exception {
    Handling handling = Handling.once(open(name));
    assertThrows(IllegalStateException.class, () -> handling.handle(delivery(1), HandlingTest::fail));
    assertTrue(handling.handle(delivery(1), HandlingTest::ignore));
    assertFalse(handling.handle(delivery(1), HandlingTest::fail));
    assertTrue(handling.handle(delivery(2), HandlingTest::ignore));
  }

  @ParameterizedTest
  @ValueSource(strings = {"memory", "sqlite", "postgres"})
  void ofConcurrentDuplicatesOneRunsAndTheOthersAreBusy(String name) throws Exception {
    Handling handling = Handling.once(open(name));
    AtomicInteger count = new AtomicInteger();
    ExecutorService threads = Executors.newFixedThreadPool(8);
    assertTrue(
        handling.handle(
            delivery(1),
            first -> {
              count.incrementAndGet();
              List<Future<Code>> others = new ArrayList<>();
              for (int i = 0; i < 8; i++) {
                others.add(
                    threads.submit(
                        () -> {
                          try {
                            handling.handle(delivery(1), each -> count.incrementAndGet());
                            return null;
                          } catch (DeliveryException error) {
                            return error.code();
                          }
                        }));
              }
              for (Future<Code> other : others) assertEquals(Code.BUSY, other.get());
            }));
    threads.shutdown();
    assertEquals(1, count.get());
  }

  @ParameterizedTest
  @ValueSource(strings = {"memory", "sqlite", "postgres"})
  void aClaimExpiresAndItsLateEndHasNoEffect(String name) throws Exception {
    DeliveryStore store = open(name);
    Handling handling = Handling.inOrder(store);
    assertTrue(
        handling
            .withLease(Duration.ofMillis(200))
            .handle(
                delivery(1),
                each -> {
                  Thread.sleep(500);
                  assertTrue(handling.handle(delivery(3), HandlingTest::ignore));
                }));
    assertFalse(handling.handle(delivery(3), HandlingTest::fail));
  }

  @ParameterizedTest
  @ValueSource(strings = {"memory", "sqlite", "postgres"})
  void inOrderRefusesWhatIsEarlier(String name) throws Exception {
    Handling handling = Handling.inOrder(open(name));
    assertTrue(handling.handle(delivery(1), HandlingTest::ignore));
    assertTrue(handling.handle(delivery(2), HandlingTest::ignore));
    assertFalse(handling.handle(delivery(2), HandlingTest::fail));
    assertTrue(handling.handle(delivery(4), HandlingTest::ignore));
    DeliveryException error =
        assertThrows(DeliveryException.class, () -> handling.handle(delivery(3), HandlingTest::fail));
    assertEquals(Code.OUT_OF_ORDER, error.code());
    assertEquals(409, error.status());
    assertThrows(
        IllegalArgumentException.class,
        () -> handling.handle(new Delivery("other", "push", 1, null, null), HandlingTest::fail));
  }

  @Test
  void aTransactionThatIsRolledBackForgetsTheDelivery() throws Exception {
    try (Connection connection = sqlite().getConnection()) {
      connection.setAutoCommit(false);
      Handling handling = Handling.once(Stores.sqlite(connection, "nuncio_handled"));
      assertTrue(handling.handle(delivery(1), HandlingTest::ignore));
      connection.rollback();
      assertTrue(handling.handle(delivery(1), HandlingTest::ignore));
      connection.commit();
      assertFalse(handling.handle(delivery(1), HandlingTest::fail));
      connection.commit();
    }
  }

  @Test
  void theMemoryForgetsTheOldestButNoClaim() throws Exception {
    Handling handling = Handling.once(Stores.memory(2));
    handling.handle(
        delivery(1),
        first -> {
          for (long sequence = 2; sequence < 8; sequence++) {
            assertTrue(handling.handle(delivery(sequence), HandlingTest::ignore));
          }
          assertThrows(DeliveryException.class, () -> handling.handle(delivery(1), HandlingTest::fail));
        });
    assertTrue(handling.handle(delivery(2), HandlingTest::ignore));
  }

  @Test
  void aNameOfATableIsChecked() throws Exception {
    SQLiteDataSource database = sqlite();
    assertThrows(IllegalArgumentException.class, () -> Stores.sqlite(database, "a; drop table b"));
  }
}
