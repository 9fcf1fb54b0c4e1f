package nuncio.verify;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** The cases that the libraries of all languages share. */
final class VectorsTest {
  private static final String VECTORS_PROPERTY = "vectors";

  @SuppressWarnings("unchecked")
  static List<Map<String, Object>> readCases() throws IOException {
    String text = Files.readString(Path.of(System.getProperty(VECTORS_PROPERTY)));
    return (List<Map<String, Object>>) ((Map<String, Object>) Json.read(text)).get("cases");
  }

  /** The type of a body excludes an object. */
  private static boolean isPossible(Map<String, Object> each) {
    return !"body-parsed".equals(each.get("error"));
  }

  @TestFactory
  Stream<DynamicTest> eachVectorHasItsOutcome() throws IOException {
    return readCases().stream()
        .filter(VectorsTest::isPossible)
        .map(each -> DynamicTest.dynamicTest((String) each.get("name"), () -> check(each)));
  }

  @Test
  void noOtherVectorIsLeftOut() throws IOException {
    long count = readCases().stream().filter(VectorsTest::isPossible).count();
    assertTrue(count > 100 && count >= readCases().size() - 2, count + " vectors");
  }

  private static void check(Map<String, Object> each) {
    if (each.get("delivery") instanceof Map<?, ?> delivery) {
      assertEquals(expected(delivery), run(each));
      return;
    }
    DeliveryException error = assertThrows(DeliveryException.class, () -> run(each));
    assertEquals(each.get("error"), error.code().toString(), error.getMessage());
    for (String secret : secretsOf(each)) {
      assertFalse(secret.length() > 10 && error.getMessage().contains(secret.strip()));
    }
  }

  private static Delivery expected(Map<?, ?> delivery) {
    Object timestamp = delivery.get("timestamp");
    return new Delivery(
        (String) delivery.get("id"),
        (String) delivery.get("kind"),
        ((Double) delivery.get("sequence")).longValue(),
        timestamp == null ? null : ((Double) timestamp).longValue(),
        (String) delivery.get("account"));
  }

  private static Delivery run(Map<String, Object> each) {
    Verifier.Builder options = Verifier.builder();
    secretsOf(each).forEach(options::secret);
    Object tolerance = each.get("tolerance");
    // Within the range of a duration in nanoseconds.
    options.tolerance(Duration.ofSeconds(tolerance == null ? 9_000_000_000L : ((Double) tolerance).longValue()));
    if (each.containsKey("keys_fail")) {
      options.publicKeys(
          PublicKeys.from(
              () -> {
                throw new IOException("no keys");
              }));
    } else if (each.containsKey("public_keys")) {
      options.publicKeys(PublicKeys.fromJson(write(each.get("public_keys"))));
    }
    Object names = each.get("header_names");
    if ("github".equals(names)) options.headerNames(HeaderNames.GITHUB);
    if ("stripe".equals(names)) options.headerNames(HeaderNames.STRIPE);
    if (names instanceof Map<?, ?> map) {
      options.headerNames(
          new HeaderNames(
              (String) map.get("event"),
              (String) map.get("delivery"),
              (String) map.get("signature"),
              (String) map.get("sequence"),
              (String) map.get("account")));
    }
    return options.build().verify(headersOf(each.get("headers")), bodyOf(each));
  }

  static byte[] bodyOf(Map<String, Object> each) {
    if (each.get("body_base64") instanceof String text) return Base64.getDecoder().decode(text);
    return each.get("body") instanceof String text ? Signature.bytesOf(text) : null;
  }

  static Map<String, List<String>> headersOf(Object headers) {
    Map<String, List<String>> all = new LinkedHashMap<>();
    if (headers instanceof List<?> pairs) {
      for (Object pair : pairs) {
        List<?> each = (List<?>) pair;
        all.computeIfAbsent((String) each.get(0), name -> new ArrayList<>()).add((String) each.get(1));
      }
      return all;
    }
    ((Map<?, ?>) headers)
        .forEach(
            (name, value) ->
                all.put(
                    (String) name,
                    value instanceof List<?> list ? list.stream().map(String.class::cast).toList() : List.of((String) value)));
    return all;
  }

  private static List<String> secretsOf(Map<String, Object> each) {
    return each.get("secrets") instanceof List<?> list ? list.stream().map(String.class::cast).toList() : List.of();
  }

  static String write(Object value) {
    if (value instanceof List<?> list) return "[" + String.join(",", list.stream().map(VectorsTest::write).toList()) + "]";
    if (value instanceof Map<?, ?> map) {
      return "{"
          + String.join(",", map.entrySet().stream().map(e -> write(e.getKey()) + ":" + write(e.getValue())).toList())
          + "}";
    }
    return Json.write((String) value);
  }
}
