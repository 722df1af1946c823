<?xml version="1.0"?>
<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
  <xsl:key name="shop" match="sale" use="@shop"/>
  <xsl:template match="/sales">
    <html><body>
      <xsl:for-each select="sale[generate-id() = generate-id(key('shop', @shop)[1])]">
        <xsl:sort select="@shop" data-type="number"/>
        <h2>Shop <xsl:value-of select="@shop"/></h2>
        <table>
          <xsl:for-each select="key('shop', @shop)">
            <xsl:sort select="price" data-type="number" order="descending"/>
            <tr><td><xsl:value-of select="item"/></td><td><xsl:value-of select="price"/></td>
              <td><xsl:value-of select="translate(note, 'aeiou', 'AEIOU')"/></td></tr>
          </xsl:for-each>
        </table>
        <p><xsl:value-of select="sum(key('shop', @shop)/price)"/></p>
      </xsl:for-each>
    </body></html>
  </xsl:template>
</xsl:stylesheet>
