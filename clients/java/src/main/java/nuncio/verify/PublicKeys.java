package nuncio.verify;

import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.PublicKey;
import java.security.spec.X509EncodedKeySpec;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The keys for {@code signature: "ed25519"}. {@code /meta} shows them, also some that do not sign yet or any more. Keys of {@link
 * #fromUrl} and {@link #from} are kept for five minutes, and loaded again when none of them matches, at most once in 30 seconds.
 * Create them once, not for each request.
 */
public final class PublicKeys {
  /** Keys that were loaded longer ago are loaded again. */
  private static final long FRESH_NANOS = TimeUnit.MINUTES.toNanos(5);

  /** The least time between the starts of two loads. */
  private static final long PAUSE_NANOS = TimeUnit.SECONDS.toNanos(30);

  /** Keys that were loaded longer ago are not used, also if they cannot be loaded again. */
  private static final long KEPT_NANOS = TimeUnit.DAYS.toNanos(1);

  private static final int FETCH_TIMEOUT_SECONDS = 5;
  private static final int RESPONSE_BYTES_MAX = 65_536;
  private static final Pattern KEY = Pattern.compile("whpk_([A-Za-z0-9+/]{43}=)");

  /** RFC 8410 section 4: the start of an X.509 public key for Ed25519, before its 32 bytes. */
  private static final byte[] X509_START = HexFormat.of().parseHex("302a300506032b6570032100");

  /** Null if the keys are not loaded. */
  private final Callable<String> load;

  private final LongSupplier nanos;
  private List<PublicKey> keys;
  private long loadedAt;
  private Long triedAt;
  private Exception failure;

  private PublicKeys(List<PublicKey> keys, Callable<String> load, LongSupplier nanos) {
    this.keys = keys;
    this.load = load;
    this.nanos = nanos;
  }

  /** Keys as text, {@code whpk_…}. */
  public static PublicKeys of(String... keys) {
    return new PublicKeys(parse(Arrays.asList(keys)), null, null);
  }

  /** The keys of what {@code /meta} responds with, of its {@code public_keys}, or one key as JSON. */
  public static PublicKeys fromJson(String json) {
    return new PublicKeys(parse(Json.read(json)), null, null);
  }

  /** The keys that the URL of {@code /meta} responds with. */
  public static PublicKeys fromUrl(String url) {
    return from(() -> fetch(URI.create(url)));
  }

  /** The keys that a function loads. It returns what {@link #fromJson} takes. */
  public static PublicKeys from(Callable<String> load) {
    return from(load, System::nanoTime);
  }

  static PublicKeys from(Callable<String> load, LongSupplier nanos) {
    return new PublicKeys(null, load, nanos);
  }

  static void check(Signature signature, byte[] body, PublicKeys source) {
    if (source == null) {
      throw new DeliveryException(
          Code.NO_PUBLIC_KEYS, "A delivery signed with ed25519 needs publicKeys: those of /meta.");
    }
    byte[] signed = signature.signed(body);
    List<PublicKey> keys = source.current();
    if (isSigned(signature, signed, keys)) return;
    List<PublicKey> renewed = source.load == null ? keys : source.renewed();
    if (renewed != keys && isSigned(signature, signed, renewed)) return;
    throw new DeliveryException(
        Code.UNKNOWN_KEY, "No public key matches: it is of another server, or the body was changed on its way.");
  }

  private static boolean isSigned(Signature signature, byte[] signed, List<PublicKey> keys) {
    for (PublicKey key : keys) {
      for (byte[] value : signature.values()) {
        try {
          java.security.Signature verifier = java.security.Signature.getInstance("Ed25519");
          verifier.initVerify(key);
          verifier.update(signed);
          if (verifier.verify(value)) return true;
        } catch (java.security.SignatureException error) {
          // The value does not have the form of a signature.
        } catch (GeneralSecurityException error) {
          throw new IllegalStateException(error);
        }
      }
    }
    return false;
  }

  /** Keys that are fresh, if they could be loaded. Others wait for the load that has begun. */
  private synchronized List<PublicKey> current() {
    if (load == null || (keys != null && nanos.getAsLong() - loadedAt < FRESH_NANOS)) return keys;
    return renewed();
  }

  /** Keys that are loaded now, unless the last load was just before. */
  private synchronized List<PublicKey> renewed() {
    if (triedAt == null || nanos.getAsLong() - triedAt >= PAUSE_NANOS) {
      triedAt = nanos.getAsLong();
      try {
        keys = parse(Json.read(load.call()));
        loadedAt = nanos.getAsLong();
      } catch (Exception error) {
        if (error instanceof InterruptedException) Thread.currentThread().interrupt();
        failure = error;
      }
    }
    if (keys != null && nanos.getAsLong() - loadedAt < KEPT_NANOS) return keys;
    throw new DeliveryException(
        Code.KEYS_UNAVAILABLE, "The public keys could not be loaded: " + failure, failure);
  }

  private static List<PublicKey> parse(Object source) {
    Object listed = source;
    if (source instanceof Map<?, ?> map && map.containsKey("public_keys")) listed = map.get("public_keys");
    List<?> list = listed instanceof List<?> several ? several : Arrays.asList(listed);
    List<PublicKey> parsed = new ArrayList<>();
    for (Object each : list) {
      Object text = each instanceof Map<?, ?> map ? map.get("key") : each;
      Matcher match = KEY.matcher(String.valueOf(text));
      if (!match.matches()) throw malformed(null);
      byte[] encoded = Arrays.copyOf(X509_START, X509_START.length + 32);
      System.arraycopy(Signature.fromBase64(match.group(1)), 0, encoded, X509_START.length, 32);
      try {
        parsed.add(KeyFactory.getInstance("Ed25519").generatePublic(new X509EncodedKeySpec(encoded)));
      } catch (GeneralSecurityException error) {
        throw malformed(error);
      }
    }
    return List.copyOf(parsed);
  }

  private static DeliveryException malformed(Exception cause) {
    return new DeliveryException(
        Code.MALFORMED_PUBLIC_KEY,
        "A public key is whpk_ and the base64 of 32 bytes, as public_keys of /meta has it.",
        cause);
  }

  private static String fetch(URI url) throws Exception {
    if (!"https".equals(url.getScheme()) && !List.of("localhost", "127.0.0.1", "[::1]").contains(url.getHost())) {
      throw new IOException("the URL must begin with https://");
    }
    HttpClient client = HttpClient.newBuilder().followRedirects(HttpClient.Redirect.NEVER).build();
    HttpRequest request = HttpRequest.newBuilder(url).timeout(Duration.ofSeconds(FETCH_TIMEOUT_SECONDS)).build();
    CompletableFuture<HttpResponse<InputStream>> future =
        client.sendAsync(request, HttpResponse.BodyHandlers.ofInputStream());
    HttpResponse<InputStream> response = future.get(FETCH_TIMEOUT_SECONDS, TimeUnit.SECONDS);
    try (InputStream body = response.body()) {
      if (response.statusCode() != 200) throw new IOException("status " + response.statusCode());
      // The timeout of the request ends with its headers.
      byte[] text =
          CompletableFuture.supplyAsync(() -> readSome(body)).get(FETCH_TIMEOUT_SECONDS, TimeUnit.SECONDS);
      if (text.length > RESPONSE_BYTES_MAX) throw new IOException("more than " + RESPONSE_BYTES_MAX + " bytes");
      return new String(text, StandardCharsets.UTF_8);
    }
  }

  private static byte[] readSome(InputStream body) {
    try {
      return body.readNBytes(RESPONSE_BYTES_MAX + 1);
    } catch (IOException error) {
      throw new java.io.UncheckedIOException(error);
    }
  }
}
