package nuncio.verify;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpHandler;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.junit.jupiter.api.Test;

/** What the vectors cannot say: options, reasons, the handler, and public keys that are loaded. */
final class VerifierTest {
  private static final String SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
  private static final Duration ANY_AGE = Duration.ofSeconds(9_000_000_000L);

  private static Map<String, List<String>> signed(String body, long ageSeconds) throws Exception {
    long at = System.currentTimeMillis() / 1_000 - ageSeconds;
    Mac mac = Mac.getInstance("HmacSHA256");
    mac.init(new SecretKeySpec(Signature.bytesOf(SECRET), "HmacSHA256"));
    String value = HexFormat.of().formatHex(mac.doFinal(Signature.bytesOf(at + "." + body)));
    return Map.of(
        "Nuncio-Event", List.of("push"),
        "Nuncio-Sequence", List.of("7"),
        "Nuncio-Delivery", List.of("5b0c7a41-9e2d-8f3a-8c41-000000000007"),
        "Nuncio-Signature", List.of("t=" + at + ",v1=" + value));
  }

  /** Returns the code of the error, or null. */
  private static Code codeOf(Runnable work) {
    try {
      work.run();
      return null;
    } catch (DeliveryException error) {
      return error.code();
    }
  }

  private static Code check(long age, Duration tolerance) throws Exception {
    Map<String, List<String>> headers = signed("{}", age);
    Verifier verifier = Verifier.builder().secret(SECRET).tolerance(tolerance).build();
    return codeOf(() -> verifier.verify(headers, Signature.bytesOf("{}")));
  }

  @Test
  void toleranceLimitsTheAgeInBothDirections() throws Exception {
    Duration usual = Duration.ofMinutes(5);
    assertEquals(null, check(240, usual));
    assertEquals(null, check(-240, usual));
    assertEquals(Code.TOO_OLD, check(302, usual));
    assertEquals(Code.TOO_NEW, check(-330, usual));
    assertEquals(Code.TOO_OLD, check(5, Duration.ZERO));
    assertThrows(IllegalArgumentException.class, () -> Verifier.builder().tolerance(Duration.ofSeconds(-1)));
  }

  @Test
  void headersAreFoundByAFunction() throws Exception {
    Map<String, List<String>> headers = signed("{}", 0);
    Verifier verifier = Verifier.builder().secret(SECRET).build();
    Delivery delivery =
        verifier.verify(
            name -> headers.containsKey(name) ? headers.get(name).get(0) : null, Signature.bytesOf("{}"));
    assertEquals("push", delivery.kind());
  }

  @Test
  void theReasonSaysThatJsonWasSerializedAgain() throws Exception {
    Verifier verifier = Verifier.builder().secret(SECRET).build();
    Map<String, List<String>> headers = signed("{\"name\":\"Zoë\",\"a\":\"x, y: \\\"z\"}", 0);
    byte[] changed = Signature.bytesOf("{\n  \"name\": \"Zoë\",\n  \"a\": \"x, y: \\\"z\"\n}");
    DeliveryException error = assertThrows(DeliveryException.class, () -> verifier.verify(headers, changed));
    assertTrue(error.getMessage().contains("other white space"), error.getMessage());
    byte[] other = Signature.bytesOf("[".repeat(100_000));
    assertEquals(Code.NO_MATCHING_SECRET, codeOf(() -> verifier.verify(headers, other)));
  }

  private static String serve(HttpHandler handler) throws IOException {
    HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
    server.createContext("/", handler);
    server.start();
    return "http://127.0.0.1:" + server.getAddress().getPort() + "/";
  }

  private static HttpResponse<String> post(String url, Map<String, List<String>> headers, String body) throws Exception {
    HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url));
    headers.forEach((name, values) -> values.forEach(value -> request.header(name, value)));
    return HttpClient.newHttpClient()
        .send(request.POST(HttpRequest.BodyPublishers.ofString(body)).build(), HttpResponse.BodyHandlers.ofString());
  }

  @Test
  void theHandlerVerifiesRequests() throws Exception {
    List<String> seen = new ArrayList<>();
    Verifier verifier = Verifier.builder().secret(SECRET).build();
    String url =
        serve(
            new VerifiedHandler(
                verifier,
                (delivery, body) -> {
                  seen.add(delivery.kind() + new String(body));
                  if (body.length == 3) throw new DeliveryException(Code.BUSY, "a \"busy\" one");
                  if (body.length == 4) throw new IllegalStateException("the password of the database");
                }));
    assertEquals(204, post(url, signed("{}", 0), "{}").statusCode());
    HttpResponse<String> busy = post(url, signed("{ }", 0), "{ }");
    assertEquals(503, busy.statusCode());
    assertEquals("{\"error\":\"busy\",\"message\":\"a \\\"busy\\\" one\"}", busy.body());
    HttpResponse<String> failed = post(url, signed("{  }", 0), "{  }");
    assertEquals(500, failed.statusCode());
    assertFalse(failed.body().contains("password"));
    HttpResponse<String> forged = post(url, signed("{}", 0), "{\"a\":1}");
    assertEquals(401, forged.statusCode());
    assertTrue(forged.body().contains("no-matching-secret"), forged.body());
    assertEquals(413, post(url, signed("{}", 0), "x".repeat(1_048_577)).statusCode());
    assertEquals(List.of("push{}", "push{ }", "push{  }"), seen);
  }

  private static Map<String, Object> example() throws IOException {
    return VectorsTest.readCases().stream()
        .filter(each -> "ed25519: the published example".equals(each.get("name")))
        .findFirst()
        .orElseThrow();
  }

  private static Code checkKeys(PublicKeys keys, byte[] body) throws IOException {
    Verifier verifier = Verifier.builder().publicKeys(keys).tolerance(ANY_AGE).build();
    Map<String, List<String>> headers = VectorsTest.headersOf(example().get("headers"));
    return codeOf(() -> verifier.verify(headers, body));
  }

  @Test
  void loadedKeysAreKeptAndLoadedAgain() throws Exception {
    String keys = VectorsTest.write(example().get("public_keys"));
    byte[] body = VectorsTest.bodyOf(example());
    AtomicInteger loads = new AtomicInteger();
    AtomicLong now = new AtomicLong(System.nanoTime());
    boolean[] isDown = {false};
    PublicKeys source =
        PublicKeys.from(
            () -> {
              loads.incrementAndGet();
              if (isDown[0]) throw new IOException("down");
              return keys;
            },
            now::get);
    IntStream.range(0, 20)
        .parallel()
        .forEach(
            i -> {
              try {
                assertEquals(null, checkKeys(source, body));
              } catch (IOException error) {
                throw new AssertionError(error);
              }
            });
    assertEquals(1, loads.get());
    assertEquals(Code.UNKNOWN_KEY, checkKeys(source, Signature.bytesOf("forged")));
    assertEquals(1, loads.get());
    now.addAndGet(Duration.ofMinutes(6).toNanos());
    assertEquals(null, checkKeys(source, body));
    assertEquals(2, loads.get());
    isDown[0] = true;
    now.addAndGet(Duration.ofHours(20).toNanos());
    assertEquals(null, checkKeys(source, body));
    assertEquals(3, loads.get());
    now.addAndGet(Duration.ofHours(5).toNanos());
    assertEquals(Code.KEYS_UNAVAILABLE, checkKeys(source, body));
  }

  @Test
  void keysOfAUrlAreRead() throws Exception {
    byte[] body = VectorsTest.bodyOf(example());
    String keys = VectorsTest.write(example().get("public_keys"));
    assertEquals(null, checkKeys(PublicKeys.fromUrl(serveText(200, "{\"public_keys\":" + keys + "}")), body));
    for (String url :
        List.of(
            serveText(302, keys),
            serveText(200, " ".repeat(70_000) + keys),
            serveText(200, "[{\"key\":\"whpk_x\"}]"),
            serveText(200, "{\"public_keys\":".repeat(1_000)),
            "http://192.0.2.1/meta",
            "file:///etc/passwd"))
      assertEquals(Code.KEYS_UNAVAILABLE, checkKeys(PublicKeys.fromUrl(url), body), url);
  }

  private static String serveText(int status, String text) throws IOException {
    return serve(
        exchange -> {
          try (exchange) {
            exchange.getResponseHeaders().set("Location", "/other");
            exchange.sendResponseHeaders(status, Signature.bytesOf(text).length);
            exchange.getResponseBody().write(Signature.bytesOf(text));
          } catch (IOException error) {
            // The client has had enough.
          }
        });
  }

  @Test
  void textThatIsNoJsonIsRefused() {
    for (String text : List.of("", "{", "[1,]", "{\"a\"}", "\"a", "tru", "1 2", "[".repeat(10_000), "\"\\u12\"", "-"))
      assertThrows(IllegalArgumentException.class, () -> Json.read(text), text);
    assertEquals(
        Map.of("a", List.of(1.5, true, "é\n")), Json.read(" {\"a\" : [1.5, true, \"\\u00e9\\n\"] } "));
  }
}
