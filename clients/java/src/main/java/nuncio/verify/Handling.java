package nuncio.verify;

import java.time.Duration;
import java.util.OptionalLong;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Handles each delivery once, or in the order of the sequence. A delivery is claimed in a store by one conditional statement:
 *
 * <pre>
 * unknown → claimed → handled              the handler has returned
 *           claimed → unknown              the handler has thrown; the server's retry is handled
 *           claimed → claimed              the process died, and the claim has expired
 * </pre>
 */
public final class Handling {
  /** What is done with a delivery. */
  @FunctionalInterface
  public interface Handler {
    /** If it throws, the delivery counts as not handled. */
    void handle(Delivery delivery) throws Exception;
  }

  private static final Pattern ID = Pattern.compile("([0-9a-f]{8}(?:-[0-9a-f]{4}){3})-([0-9a-f]{12})");

  private final DeliveryStore store;
  private final boolean isOrdered;
  private final Duration lease;

  private Handling(DeliveryStore store, boolean isOrdered, Duration lease) {
    this.store = store;
    this.isOrdered = isOrdered;
    this.lease = lease;
  }

  /** Handles each delivery id once. */
  public static Handling once(DeliveryStore store) {
    return new Handling(store, false, Duration.ofMinutes(1));
  }

  /**
   * Handles the deliveries of a subscription that is {@code ordered} by their sequence: each of them once, one at a time, and none
   * after a later one. Different subscriptions can share a store.
   */
  public static Handling inOrder(DeliveryStore store) {
    return new Handling(store, true, Duration.ofMinutes(1));
  }

  /**
   * The same with another lease: how long a claim is valid. A delivery whose process has died is handled again after this time. It
   * must be longer than any handler takes. Default: one minute.
   */
  public Handling withLease(Duration other) {
    return new Handling(store, isOrdered, other);
  }

  /**
   * Runs the handler, unless the delivery was handled before.
   *
   * @return whether the handler has run
   * @throws DeliveryException if the delivery cannot be handled now: {@link Code#BUSY} or {@link Code#OUT_OF_ORDER}
   * @throws Exception of the handler or of the store
   */
  public boolean handle(Delivery delivery, Handler handler) throws Exception {
    String key = isOrdered ? laneOf(delivery) : delivery.id();
    long position = isOrdered ? delivery.sequence() : 1;
    String token = UUID.randomUUID().toString();
    OptionalLong handled = store.claim(key, position, token, lease);
    if (handled.isPresent()) return refuse(handled.getAsLong(), position);
    try {
      handler.handle(delivery);
    } catch (Throwable error) {
      try {
        store.release(key, token);
      } catch (Exception another) {
        // Such as in a transaction that is aborted. The claim expires.
        error.addSuppressed(another);
      }
      throw error;
    }
    store.complete(key, position, token);
    return true;
  }

  private static boolean refuse(long handled, long position) {
    if (handled == position) return false;
    if (handled > position) {
      throw new DeliveryException(Code.OUT_OF_ORDER, "A later delivery was handled before.");
    }
    throw new DeliveryException(Code.BUSY, "A delivery is being handled at this moment.");
  }

  private static String laneOf(Delivery delivery) {
    // The last group of an id is its sequence, and the others are those of its subscription. After a failover of the server's
    // database they differ, and the sequence may go back.
    Matcher match = ID.matcher(delivery.id());
    if (!match.matches() || Long.parseLong(match.group(2), 16) != delivery.sequence()) {
      throw new IllegalArgumentException("the id of the delivery does not have its sequence");
    }
    return match.group(1);
  }
}
