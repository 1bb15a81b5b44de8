import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.node.Node;
import org.opensearch.plugins.Plugin;

/** One OpenSearch node: SearchNode DIRECTORY HTTP_PORT TRANSPORT_PORT. It ends when its standard input does. */
public class SearchNode {
  private static final String[] PLUGINS = {
    "org.opensearch.transport.Netty4Plugin",
    "org.opensearch.ingest.common.IngestCommonPlugin",
    "org.opensearch.index.mapper.MapperExtrasPlugin",
  };

  private static class OwnNode extends Node {
    OwnNode(Environment environment, Collection<Class<? extends Plugin>> plugins) {
      super(environment, plugins, false);
    }
  }

  public static void main(String[] arguments) throws Exception {
    Path home = Paths.get(arguments[0]);
    Files.createDirectories(home.resolve("config"));
    Settings settings =
        Settings.builder()
            .put("path.home", home)
            .put("path.data", home.resolve("data"))
            .put("path.logs", home.resolve("logs"))
            .put("cluster.name", "signoff-tests")
            .put("node.name", "only")
            .put("network.host", "127.0.0.1")
            .put("http.port", arguments[1])
            .put("transport.port", arguments[2])
            .put("discovery.type", "single-node")
            .put("node.processors", 2)
            .put("node.store.allow_mmap", false)
            // The disk of a test machine may be almost full; a test that asks for the watermark sets it.
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .put("action.destructive_requires_name", false)
            // The least there is: a row that is too large for the server need not be large.
            .put("http.max_content_length", "1mb")
            .build();
    List<Class<? extends Plugin>> plugins = new ArrayList<>();
    for (String name : PLUGINS) {
      plugins.add(Class.forName(name).asSubclass(Plugin.class));
    }
    new OwnNode(new Environment(settings, home.resolve("config")), plugins).start();
    while (System.in.read() >= 0) {}
    Runtime.getRuntime().halt(0);
  }
}
