// Tables of runs joined into one. The tables are written by hand.
#include "app/results/view.h"

#include "tests/app/app_fixture.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

struct ViewTest : SmallTest {
  // Joins runs "0", "1", ..., each with one of these tables; returns requests.csv.
  static std::string joined(const std::vector<std::string>& tables) {
    ResultsFolder folder("out", load_experiment("small.yaml", {}), ResultsFolder::Joins::kNo);
    View view;
    for (const std::string& table : tables) {
      const std::string id = std::to_string(view.rows.size());
      view.rows.push_back({id, folder.runs() / id, {}});
      write(view.rows.back().run / "summary.csv", "run,seed\n" + id + ",1\n");
      write(view.rows.back().run / "requests.csv", table);
    }
    join_runs(folder, view);
    return read("out/requests.csv");
  }
};

TEST_F(ViewTest, MissingLastColumnsAreEmpty) {
  EXPECT_EQ(joined({"run,a\n0,1\n0,2\n", "run,a,b,c\n1,3,4,5\n", "run,a,b\n2,6,7\n", ""}), "run,a,b,c\n0,1,,\n0,2,,\n1,3,4,5\n2,6,7,\n");
}

// The empty fields are at the end of a row, which is not the end of each of its lines.
TEST_F(ViewTest, QuotedLineBreaksDoNotEndARow) {
  const std::string rows = "0,\"p\nq\"\"\n\"\"\n,r\",s";
  EXPECT_EQ(joined({"run,a,b\n" + rows + "\n0,\"\"\"\",t\n", "run,a,b,c\n1,\"x\ny\",2,3\n"}),
            "run,a,b,c\n" + rows + ",\n0,\"\"\"\",t,\n1,\"x\ny\",2,3\n");
}

TEST_F(ViewTest, OtherColumnsAreRefused) {
  for (const std::string other : {"run,b\n1,1\n", "run,ab,c\n1,1,1\n", "run,b,c,d\n1,1,1,1\n"}) {
    EXPECT_THAT(error_of([&] {
                  joined({"run,a,c\n0,1,1\n", other});
                }),
                HasSubstr("requests.csv: has other columns than the runs before it"))
        << other;
  }
}

}  // namespace
}  // namespace kvlab
