package nuncio.verify;

import java.time.Duration;
import java.util.OptionalLong;

/** Keeps what was handled. {@link Stores} has one in memory, and those in PostgreSQL and SQLite. */
public interface DeliveryStore {
  /**
   * Claims a position that is higher than the handled one, if nobody has a claim.
   *
   * @return empty if it is claimed, and otherwise the highest position that was handled
   */
  OptionalLong claim(String key, long position, String token, Duration lease) throws Exception;

  /** The claimed position is handled. Without effect if the claim has expired and another one was made. */
  void complete(String key, long position, String token) throws Exception;

  /** Gives the claim back. */
  void release(String key, String token) throws Exception;
}
